"""What the commands share: checkpoints and how a run starts, optimizer, device, files, signals and tracking."""
