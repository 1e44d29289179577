"""What the commands share: the device, checkpoints, other people's weights, tracking and the processes of a run."""
