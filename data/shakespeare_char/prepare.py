"""Tiny Shakespeare by character, as in nanoGPT: the same as  python -m data.prepare shakespeare_char"""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
sys.argv.insert(1, "shakespeare_char")
runpy.run_module("data.prepare", run_name="__main__")
