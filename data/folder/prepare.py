"""Your own text: python data/folder/prepare.py PATH --glob='*.txt' --tokenizer=char|gpt2|bpe:4096 --name=mine"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from run.script import script
from data.prepare import folder_main

if __name__ == "__main__":
    script(folder_main)
