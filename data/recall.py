"""A text of facts and questions about them, at log-uniform distances: python -m data.prepare recall

  …….4u..7L…….0c.4u...7L…

In each document every digit has one letter. The first mention of a digit is a fact, and every later one is a question
whose answer can be looked up: python eval_length.py RUN --protocol=recall measures how far back a model can do that.
Some documents are dense, others mostly filler. All digits draw from the same 26 letters, and no two digits share one in
a document, so the letters in the context do not tell which of them follows this digit. To look it up, a model needs the
order of tokens, and two attention layers that build on each other (Olsson et al. 2022, arXiv 2209.11895). The text is
identical on every Python, since the generator has its own random numbers.
"""

import heapq
import math
import string

DOCUMENTS, CHARACTERS = 4000, 8192
NEAREST, FARTHEST = 4, 2048  # characters between the end of a mention and the next one
DENSEST = 64  # a document's farthest distance is at least this: with less, mentions would have to wait
# from NEAREST to FARTHEST in 4,096 steps of equal ratio, rounded once: no logarithm is taken while text is made
DISTANCES = [round(NEAREST * math.exp(math.log(FARTHEST / NEAREST) * i / 4096)) for i in range(4096)]


class Random:
    """xorshift64* (Vigna 2016, arXiv 1402.6246): the same integers everywhere."""

    def __init__(self, seed):
        self.state = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64

    def below(self, n):
        self.state ^= self.state >> 12
        self.state ^= self.state << 25 & (2**64 - 1)
        self.state ^= self.state >> 27
        return (self.state * 0x2545F4914F6CDD1D % 2**64 >> 11) * n >> 53


def document(seed):
    """One document of CHARACTERS characters or one more. Its distances are log-uniform from NEAREST to its farthest,
    which is log-uniform from DENSEST to FARTHEST. A mention comes when its distance is reached, or a few characters
    later if others are due."""
    random, text, densest = Random(seed), "", DISTANCES.index(DENSEST)
    farthest = densest + random.below(len(DISTANCES) - densest)

    def later():
        return len(text) + DISTANCES[random.below(farthest)]

    letters = list(string.ascii_lowercase)
    due = [(later(), f"{digit}{letters.pop(random.below(len(letters)))}") for digit in range(10)]
    heapq.heapify(due)
    while (start := max(len(text), due[0][0])) < CHARACTERS:
        mention = due[0][1]
        text = text.ljust(start, ".") + mention
        heapq.heapreplace(due, (later(), mention))
    return text.ljust(CHARACTERS, ".")
