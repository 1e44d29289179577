"""Tiny Shakespeare by character, as in nanoGPT: the same as  python -m data.prepare shakespeare_char"""

import runpy
import sys

sys.path[0] += "/../.."
sys.argv.insert(1, "shakespeare_char")
runpy.run_module("data.prepare", run_name="__main__", alter_sys=True)
