"""OpenWebText in GPT-2's BPE, as in nanoGPT: the same as  python -m data.prepare openwebtext"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.prepare import main, script

if __name__ == "__main__":
    script(lambda argv: main(["openwebtext", *argv]))
