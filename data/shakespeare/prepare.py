"""Tiny Shakespeare in GPT-2's BPE, as in nanoGPT: the same as  python -m data.prepare shakespeare"""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
sys.argv.insert(1, "shakespeare")
runpy.run_module("data.prepare", run_name="__main__")
