"""Tiny Shakespeare in GPT-2's BPE, as in nanoGPT: the same as  python -m data.prepare shakespeare"""

import runpy
import sys

sys.path[0] += "/../.."
sys.argv.insert(1, "shakespeare")
runpy.run_module("data.prepare", run_name="__main__", alter_sys=True)
