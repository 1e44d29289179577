"""Tiny Shakespeare by character, as in nanoGPT: the same as  python -m data.prepare shakespeare_char"""

import sys

sys.path[0] += "/../.."
from data.prepare import main, script

sys.argv.insert(1, "shakespeare_char")
script(main)
