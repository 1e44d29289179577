"""Tasks with exact answers, for evaluation.answers: python -m data.prepare copy

  bQďk>bQďk

A task is a function make(random, n) that returns a question of n symbols and its answer; @task registers it by its
name. The text has an example a line, by character, and the longest has LONGEST symbols, or --longest. Longer ones are
made only when a run is evaluated. An example of LONGEST symbols with its answer has up to 64 characters (addition), so
that a window of 128 holds at least one whole example of any length. Windows start anywhere, so the examples of training
stand at all positions. The text is identical on every Python.
"""

import contextlib
import inspect
import string

from data.recall import CHARACTERS, Random
from run.files import json_hash

LONGEST = 20  # symbols of a training example, by default; shorter ones are as frequent
SYMBOLS = [*string.ascii_letters, *map(chr, range(0x100, 0x180))]  # 180, enough for 8 times LONGEST
TASKS = {}  # name -> function


def task(make):
    TASKS[make.__name__] = make
    return make


def draw(random, symbols, n):
    return "".join(symbols[random.below(len(symbols))] for _ in range(n))


def draw_distinct(random, n):
    """n different SYMBOLS."""
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
    """dbca>abcd: by code point, capitals first; no symbol occurs twice."""
    question = draw_distinct(random, n)
    return question, "".join(sorted(question))


@task
def majority(random, n):
    """aabab>a: the letter that occurs more often; b if neither does, so b is the answer to more than half."""
    question = draw(random, "ab", n)
    return question, max("ba", key=question.count)


@task
def parity(random, n):
    """0110>0: 1 if the number of ones is odd."""
    question = draw(random, "01", n)
    return question, str(question.count("1") % 2)


@task
def addition(random, n):
    """72+85>580: 27 + 58 = 85, n digits each, the lowest first, and n + 1 digits of the sum."""
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


def example(name, random, n):
    """A question of n symbols and its answer. ValueError if the task fails, or if they do not fit into a line."""
    try:
        question, answer = TASKS[name](random, n)
        has_line_end = "\n" in question + answer
    except Exception as error:  # whatever an unfinished task does
        raise ValueError(f"the task {name} fails for {n} symbols: {type(error).__name__}: {error}") from None
    if has_line_end or ">" in question:
        raise ValueError(f"the task {name} has a line end, or > in a question: {question + '>' + answer!r}")
    return question, answer


def source_of(name, longest=LONGEST):
    """What meta.json says of a task's text. It changes when the text or the rule does, for examples of any length."""
    content = [inspect.getsource(TASKS[name]).replace(TASKS[name].__doc__ or "", ""), document(name, 0, longest)]
    with contextlib.suppress(ValueError):  # some tasks end at some length
        for n in range(LONGEST + 1, 8 * LONGEST + 1):
            content.append(fresh_examples(name, n, 1, seed=0))
    return f"{name}, 1 to {longest} symbols, {json_hash(content)[:10]}"


def task_of(dataset):
    """The name of the task whose text a dataset has, and the symbols of its longest examples. ValueError unless today's
    rule made it, by character."""
    text = dataset.meta["source"]["text"]
    name = text.split(",")[0]
    if name not in TASKS:
        raise ValueError(f"{dataset.name} is {text!r}, which is no task: prepare one of {', '.join(TASKS)}")
    longest = int(text.split()[3])
    if text != source_of(name, longest):
        advice = "prepare it again with --overwrite, and train again"
        raise ValueError(f"{dataset.name} is {text!r}, but another rule made it than today's: {advice}")
    if dataset.tokenizer.spec["kind"] != "char":
        raise ValueError(f"{dataset.name} is not in characters: prepare it with --tokenizer=char")
    return name, longest


def document(name, seed, longest=LONGEST):
    """One document: examples up to CHARACTERS characters, and the rest of the last one. The separators before them vary
    where they begin: those of copy have even lengths, so that without it a model would learn their places by heart."""
    random = Random(seed)
    text = "\n" * random.below(12)
    while len(text) < CHARACTERS:
        question, answer = example(name, random, 1 + random.below(longest))
        text += f"{question}>{answer}\n"
    return text


def fresh_examples(name, n, count, seed):
    """Questions and answers of n symbols, from other random numbers than any document. Where there are few questions of
    this length, some are in the text."""
    random = Random((seed + 1) * 2**32 + n)
    return [example(name, random, n) for _ in range(count)]
