"""The folder of a run: held by the process that trains, and given its checkpoints."""

import math
from dataclasses import replace

from run import checkpoint as checkpoints
from run.files import Lock


class RunFolder(Lock):
    """A full disk, or a folder that is gone, does not end training: `unsaved` says why the last save failed."""

    unsaved = None

    def save(self, checkpoint, val_loss, log):
        """Saves a checkpoint with this validation loss, as best.pt too where none was lower. Returns the best loss that is
        saved."""
        best, before = self.folder / "best.pt", checkpoint.best_val_loss
        is_best = val_loss < before or (val_loss < math.inf and not best.exists())
        after = val_loss if is_best else before
        try:
            self.keep()
            replace(checkpoint, best_val_loss=after).save(self.folder, is_best)
            self.unsaved = None
        except OSError as error:
            self.unsaved = f"step {checkpoint.step} could not be saved in {self.folder}: {error.strerror or error}"
            log.say([f"{self.unsaved}. The last checkpoint stays, training goes on, and saves again later"])
            after = checkpoints.load(best).best_val_loss if best.is_file() else before  # it may have been replaced
        return after

    def check_saved(self):
        """ValueError where the last save failed."""
        if self.unsaved:
            how = f"Make room, and go on with: python train.py --resume --out_dir={self.folder}"
            raise ValueError(f"{self.unsaved}. {how}")
