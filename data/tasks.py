"""Tasks with exact answers, for --protocol=task: python -m data.prepare copy

  bQďk>bQďk

A task is a function make(random, n) that returns a question of n symbols and its answer; @task registers it by its
name. The text has an example a line, by character, and the longest has LONGEST symbols. Longer ones are made only when
a run is evaluated. An example of LONGEST symbols with its answer has up to 64 characters (addition), so that a window
of 128 holds at least one whole example of any length. Windows start anywhere, so the examples of training stand at all
positions. The text is identical on every Python.
"""

import string
import zlib

from data.recall import CHARACTERS, Random

LONGEST = 20  # symbols of a training example; shorter ones are as frequent
SYMBOLS = [*string.ascii_letters, *map(chr, range(0x100, 0x180))]  # 180, enough for 8 times LONGEST
TASKS = {}  # name -> function


def task(make):
    TASKS[make.__name__] = make
    return make


def draw(random, symbols, n):
    return "".join(symbols[random.below(len(symbols))] for _ in range(n))


def draw_distinct(random, n):
    """n different SYMBOLS. ValueError if there are fewer."""
    if n > len(SYMBOLS):
        raise ValueError(f"an example has at most {len(SYMBOLS)} different symbols, not {n}: choose shorter --lengths")
    symbols = list(SYMBOLS)
    return "".join(symbols.pop(random.below(len(symbols))) for _ in range(n))


# ----------------------------------------------------------------------------------------------------------
# The tasks


@task
def copy(random, n):
    """abcd>abcd: no symbol occurs twice."""
    question = draw_distinct(random, n)
    return question, question


@task
def repeat_copy(random, n):
    """abba>abba: two letters."""
    question = draw(random, "ab", n)
    return question, question


@task
def reverse(random, n):
    """abcd>dcba: no symbol occurs twice."""
    question = draw_distinct(random, n)
    return question, question[::-1]


@task
def sort(random, n):
    """dbca>abcd: no symbol occurs twice."""
    question = draw_distinct(random, n)
    return question, "".join(sorted(question))


@task
def majority(random, n):
    """aabab>a: the letter that occurs more often; b if neither does."""
    question = draw(random, "ab", n)
    return question, max("ba", key=question.count)


@task
def parity(random, n):
    """0110>0: 1 if the number of ones is odd."""
    question = draw(random, "01", n)
    return question, str(question.count("1") % 2)


@task
def addition(random, n):
    """72+85>571, which is 27 + 58 = 175: n digits each, the lowest first, and n + 1 digits of the sum."""
    a = draw(random, string.digits, n)
    b = draw(random, string.digits, n)
    total = int(a[::-1]) + int(b[::-1])
    return f"{a}+{b}", f"{total:0{n + 1}}"[::-1]


@task
def lookup(random, n):
    """a3b7c1b>7: n different keys with a digit each, then one of them (MQAR, Arora et al. 2023, arXiv 2312.04927)."""
    keys = draw_distinct(random, n)
    values = draw(random, string.digits, n)
    i = random.below(n)
    pairs = "".join(key + value for key, value in zip(keys, values, strict=True))
    return pairs + keys[i], values[i]


@task
def selective_copy(random, n):
    """.a..b.c>abc: each of n symbols is a letter or, as often, a dot, which is left out."""
    question = draw(random, string.ascii_lowercase + 26 * ".", n)
    return question, question.replace(".", "")


# ----------------------------------------------------------------------------------------------------------
# Their texts


def source_of(name):
    """What meta.json says of a task's text. It changes when the text does."""
    return f"{name}, 1 to {LONGEST} symbols, {zlib.crc32(document(name, 0).encode())}"


def document(name, seed):
    """One document: examples up to CHARACTERS characters, and the rest of the last one. The separators before them vary
    where they begin: those of copy have even lengths, so that without it a model would learn their places by heart."""
    random = Random(seed)
    text = "\n" * random.below(12)
    while len(text) < CHARACTERS:
        question, answer = TASKS[name](random, 1 + random.below(LONGEST))
        text += f"{question}>{answer}\n"
    return text


def fresh_examples(name, n, count, seed):
    """Questions and answers of n symbols, from other random numbers than any document."""
    random = Random((seed + 1) * 2**32 + n)
    return [TASKS[name](random, n) for _ in range(count)]
