"""Tiny Shakespeare by character, as in nanoGPT: 1,003,854 tokens to train on, 111,540 to validate, 65 characters."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from run.script import script
from data.prepare import shakespeare_main

if __name__ == "__main__":
    script(lambda argv: shakespeare_main(argv, "shakespeare_char", "char"))
