"""The folder of a run: locked by the process that trains, which saves its checkpoints there."""

import math
from dataclasses import replace
from pathlib import Path

from run.checkpoint import load_checkpoint
from run.files import Lock


class RunFolder(Lock):
    """A full disk or a missing folder does not end training; `unsaved` then says why the last save failed."""

    unsaved = None

    def __init__(self, out_dir):
        super().__init__(Path(out_dir), partial=("*.pt", "*.jsonl", "*.png"))

    def save(self, checkpoint, val_loss, log):
        """Saves a checkpoint with this validation loss, also as best.pt if no earlier loss was lower. Returns the best
        loss that is saved."""
        best, before = self.folder / "best.pt", checkpoint.best_val_loss
        is_best = val_loss < before or (val_loss < math.inf and not best.exists())
        after = val_loss if is_best else before
        try:
            self.keep()
            replace(checkpoint, best_val_loss=after).save(self.folder, is_best)
            self.unsaved = None
        except OSError as error:
            self.unsaved = f"step {checkpoint.step} could not be saved in {self.folder}: {error.strerror or error}"
            log.say([f"{self.unsaved}. The last checkpoint is kept; training continues and will try again"])
            after = load_checkpoint(best).best_val_loss if best.is_file() else before  # best.pt may have been replaced
        return after

    def check_saved(self):
        """ValueError if the last save failed."""
        if self.unsaved:
            how = f"Free some space and resume: python train.py --resume --out_dir={self.folder}"
            raise ValueError(f"{self.unsaved}. {how}")
