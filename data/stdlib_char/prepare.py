"""The source of Python's standard library, by character: the default dataset, prepared by itself when missing.

In other tokens, as data/stdlib_bpe1024: python data/stdlib_char/prepare.py --tokenizer=bpe:1024
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from run.script import script
from data.prepare import stdlib_main

if __name__ == "__main__":
    script(stdlib_main)
