"""Tiny Shakespeare in GPT-2's BPE, as in nanoGPT: 301,966 tokens to train on, 36,059 to validate."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from run.script import script
from data.prepare import shakespeare_main

if __name__ == "__main__":
    script(lambda argv: shakespeare_main(argv, "shakespeare", "gpt2"))
