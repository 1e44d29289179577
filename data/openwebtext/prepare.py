"""OpenWebText in GPT-2's BPE, as in nanoGPT: the same as  python -m data.prepare openwebtext"""

import runpy
import sys

sys.path[0] += "/../.."
sys.argv.insert(1, "openwebtext")
runpy.run_module("data.prepare", run_name="__main__", alter_sys=True)
