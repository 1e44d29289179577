"""Facts, filler, and the facts asked for again at log-uniform distances: python data/recall_char/prepare.py

  ta=7; du ke lin … ta=7;

The first time a name comes up its number is a fact, the second time a question, and then it is free again. Byte-
identical on every Python, since its random numbers are its own. The loss on an answer against its distance to the fact
says how far back a model can look something up; python eval_length.py RUN --recall measures it.
"""

import heapq
import math
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from config import script
from data.prepare import Parser, prepare

DOCUMENTS, CHARACTERS = 250, 16_384
NEAREST, FARTHEST = 8, 4096  # characters between the end of a fact and its question
NAMES = [x + y for c in "bdfgklmnprstvz" for v in "aeiou" for x, y in (c + v, v + c)]
FILLER = ["du", "ke", "lin", "so", "mar", "tep", "oru", "vas", "ni", "hol", "bex", "jat", "wem", "qui", "zor", "pyl"]


class Random:
    """xorshift64* (Vigna 2016): the same integers everywhere."""

    def __init__(self, seed):
        self.state = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64

    def below(self, n):
        x = self.state
        x ^= x >> 12
        x ^= x << 25 & (2**64 - 1)
        x ^= x >> 27
        self.state = x
        return (x * 0x2545F4914F6CDD1D % 2**64 >> 11) * n >> 53

    def choice(self, values):
        return values[self.below(len(values))]


# FARTHEST/NEAREST in 4,096 steps of equal ratio, rounded once: no logarithm is taken while text is made
DISTANCES = [round(NEAREST * math.exp(math.log(FARTHEST / NEAREST) * i / 4096)) for i in range(4096)]


def document(seed):
    """One document of about CHARACTERS characters. A question comes as soon as its distance is reached."""
    random, parts, length, due, known = Random(seed), [], 0, [], set()

    def write(text):
        nonlocal length
        parts.append(text)
        length += len(text)

    while length < CHARACTERS:
        if due and due[0][0] <= length:
            _, name, number = heapq.heappop(due)
            write(f"{name}={number}; ")
            known.discard(name)
        elif random.below(2) == 0:
            name = random.choice(NAMES)
            if name not in known:
                known.add(name)
                number = random.below(10)
                write(f"{name}={number}; ")
                heapq.heappush(due, (length + random.choice(DISTANCES), name, number))
        else:
            write(random.choice(FILLER) + " ")
    return "".join(parts) + "\n"


def main(argv):
    Parser(description=__doc__).parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i:04}.txt" for i in range(DOCUMENTS)]
        for i, file in enumerate(files):
            file.write_text(document(i), encoding="ascii")
        prepare("recall_char", files, "char", {"text": "facts and questions"}, Path(folder))
    return 0


if __name__ == "__main__":
    script(main)
