"""ALiBi with slope × position rounded to bfloat16, as BLOOM's code in transformers 5.23 has it (card 15):

python -m benchmark.rounded train --pos_scheme=alibi_rounded
python -m benchmark.rounded eval_length out/alibi --layers="pos_scheme=alibi_rounded *4"
"""

import importlib
import math

import torch

from model import ALiBi
from run.script import script


class RoundedALiBi(ALiBi, name="alibi_rounded"):
    """Adds slope × j to the scores of the key at position j, which bfloat16 keeps to 8 significant bits. If the slopes
    are powers of two, nothing is rounded up to position 256; from there on, neighbours have the same penalty."""

    def prepare(self, q_pos, k_pos):
        root = math.sqrt(self.config.head_size)
        slopes = torch.tensor(self.slopes, device=q_pos.device) / root  # (H, 1, 1)
        products = (slopes * q_pos[:, None]).bfloat16()
        channels = torch.full((1, 1), root, device=q_pos.device), products  # of q and of k (H, T, 1)
        return channels, channels


def main(argv):
    command, *arguments = argv
    return importlib.import_module(command).main(arguments)


if __name__ == "__main__":
    script(main)
