"""A text of facts and questions about them, at log-uniform distances: python -m data.prepare recall

  …….4u..7L…….0c.4u...7L…

In each document every digit has one letter. The first mention of a digit is a fact, and every later one is a question
whose answer can be looked up: python -m evaluation.answers RUN measures how far back a model can do that.
Some documents are dense, others mostly filler. All digits draw from the same 26 letters, and no two digits share one in
a document, so the letters in the context do not tell which of them follows this digit. To look it up, a model needs the
order of tokens, and two attention layers that build on each other (Olsson et al. 2022, arXiv 2209.11895). The text is
identical on every Python, since the generator has its own random numbers.
"""

import heapq
import math
import re
import string

SOURCE = "facts and questions"  # in meta.json
DOCUMENTS = 4000
CHARACTERS = 8192  # of a document
NEAREST = 4  # characters between the end of a mention and the next one
FARTHEST = 2048
DENSEST = 64  # a document's farthest distance is at least this: with less, mentions would have to wait
# from NEAREST to FARTHEST in 4,096 steps of equal ratio, rounded once: no logarithm is taken while text is made
DISTANCES = [round(NEAREST * math.exp(math.log(FARTHEST / NEAREST) * i / 4096)) for i in range(4096)]


class Random:
    """xorshift64* (Vigna 2016, arXiv 1402.6246): the same integers everywhere."""

    def __init__(self, seed):
        self.state = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64

    def below(self, n):
        """A random integer from 0 to n − 1."""
        self.state ^= self.state >> 12
        self.state ^= self.state << 25 & (2**64 - 1)
        self.state ^= self.state >> 27
        return (self.state * 0x2545F4914F6CDD1D % 2**64 >> 11) * n >> 53


def document(seed):
    """One document of CHARACTERS characters or one more. Its distances are log-uniform from NEAREST to its farthest,
    which is log-uniform from DENSEST to FARTHEST. A mention comes when its distance is reached, or a few characters
    later if others are due."""
    random = Random(seed)
    densest = DISTANCES.index(DENSEST)
    n_distances = densest + random.below(len(DISTANCES) - densest)  # the document draws from the first of DISTANCES

    # the start and the text of each digit's next mention, the earliest one first
    letters = list(string.ascii_lowercase)
    mentions = []
    for digit in range(10):
        start = DISTANCES[random.below(n_distances)]
        letter = letters.pop(random.below(len(letters)))
        mentions.append((start, f"{digit}{letter}"))
    heapq.heapify(mentions)

    text = ""
    while mentions[0][0] < CHARACTERS and len(text) < CHARACTERS:
        start, mention = mentions[0]
        text = text.ljust(start, ".") + mention
        heapq.heapreplace(mentions, (len(text) + DISTANCES[random.below(n_distances)], mention))
    return text.ljust(CHARACTERS, ".")


def question(random, distance, size):
    """`size` characters of a new document that end with a question and its answer. The context has no other mention of
    its digit than one fact, `distance` to twice as many characters before."""
    text = document(2**32 + random.below(2**20))[: size - 2]
    digit = str(random.below(10))
    letter = random.below(26)
    fact = f"{digit}{string.ascii_lowercase[letter]}"
    text = re.sub(rf"{digit}[a-z]?|\d$", lambda mention: "." * len(mention[0]), text)
    place = len(text) - 2 - min(distance + random.below(distance), len(text) - 2)
    before, after = text[:place], text[place + 2 :]
    # neither half of another mention may stay
    return re.sub(r"\d$", ".", before) + fact + re.sub(r"^[a-z]", ".", after) + fact
