"""Tiny Shakespeare in GPT-2's BPE, as in nanoGPT: the same as  python -m data.prepare shakespeare"""

import sys

sys.path[0] += "/../.."
from data.prepare import main, script

sys.argv.insert(1, "shakespeare")
script(main)
