"""Tiny Shakespeare by character, as in nanoGPT: the same as  python -m data.prepare shakespeare_char"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.prepare import main, script

if __name__ == "__main__":
    script(lambda argv: main(["shakespeare_char", *argv]))
