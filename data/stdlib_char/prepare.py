"""The source of Python's standard library, by character: the default dataset, prepared by itself when missing."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from config import script
from data.prepare import stdlib_main

if __name__ == "__main__":
    script(stdlib_main)
