"""Settings from config files and the command line: `python train.py config/rope.py --batch_size=32`.

A config file is a list of Python assignments. Files compose: a later one wins, and --key=value wins over all. Every
name must be a field of the script's frozen dataclass, and every value must have the type of its field.
"""

import ast
import contextlib
import dataclasses
import difflib
import inspect
import os
import re
import runpy
import sys
import typing
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
PathName = typing.Annotated[str, Path]  # the type of a setting that may be a path: `~` is the home folder
# Numbers with a range of their own: the type, the lowest value, and the first value above the range
Count = typing.Annotated[int, 1, 2**20]
Seed = typing.Annotated[int, 0, 2**63]
Share = typing.Annotated[float, 0, 1]
RANGES = {int: (0, 2**24), float: (0, 10**12)}  # of all other numbers
ANSWERS = {  # what users of nanoGPT type -> what there is instead
    "steps": "did you mean --max_iters?",
    "lr_decay_iters": "the rates fall until --max_iters",
    "decay_lr": "for a constant rate, set --min_lr to --learning_rate",
    "eval_iters": "an evaluation reads 65,536 tokens, and --eval_only the whole validation text",
    "always_save_checkpoint": "a checkpoint is saved every --eval_interval steps",
    "wandb_run_name": "the name of the run is that of --out_dir",
    "wandb_log": "did you mean --wandb_mode?",
    "backend": "it follows from --device",
}


def parse(cls, argv, bare_field=""):
    """(values, files) of a command line: the fields of cls that it sets, and the config files that it names. Arguments
    that are neither flags nor .py files go into the fields that bare_field names, one after another, and all further
    ones into a field that is a tuple. --help prints the fields and exits. ValueError for anything that does not fit."""
    bare_fields = bare_field.split()
    values = {}
    flags = {}
    files = []
    for arg in argv:
        if arg in ("-h", "--help"):
            print(help_text(cls))
            sys.exit()
        if arg.startswith("--"):
            key, value = parse_flag(cls, arg)
            flags[key] = value
        elif arg.endswith(".py"):
            files.append(arg)
            values |= read_file(cls, arg)
        elif not bare_fields:
            raise ValueError(f"{arg!r} is neither a config file (config/NAME.py) nor a flag (--key=value)")
        elif tuple in types_of(cls, bare_fields[0]):
            flags[bare_fields[0]] = (*flags.get(bare_fields[0], ()), arg)
        else:
            flags[bare_fields.pop(0)] = arg
    return values | flags, files


def parse_flag(cls, arg):
    """(key, value) of --key=value, or of --key alone for a boolean."""
    key, equals, text = arg.removeprefix("--").partition("=")
    types = types_of(cls, key)
    if not equals and bool not in types:
        raise ValueError(f"--{key} needs a value, after an equals sign: --{key}=VALUE")
    return key, convert(key, text if equals else True, types)


def load(cls, argv, bare_field=""):
    """The dataclass that the command line describes."""
    return cls(**parse(cls, argv, bare_field)[0])


def read_file(cls, path):
    """The assignments of one config file, executed in its own namespace. Ours are found from any folder."""
    file = Path(path) if Path(path).is_file() else ROOT / path
    if not file.is_file():
        raise ValueError(f"there is no config file {path}: ours are in config/")
    try:
        names = runpy.run_path(str(file))
    except Exception as error:
        raise ValueError(f"{path} does not run: {type(error).__name__}: {error}") from error
    for name, value in [*names.items()]:
        if name.startswith("_") or inspect.ismodule(value) or callable(value):  # what it imports
            del names[name]
    return checked(cls, names, path)


def checked(cls, values, where):
    """The values, converted to the types of their fields. ValueError, which says where they are from, for an unknown
    key or a value of another type."""
    try:
        return {key: convert(key, value, types_of(cls, key)) for key, value in values.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def types_of(cls, key):
    """The types that the field `key` of cls accepts: [int], [bool, NoneType] for `bool | None`, [str, Path] for a
    PathName. ValueError for an unknown key."""
    annotations = typing.get_type_hints(cls, include_extras=True)
    if key not in annotations:
        similar = difflib.get_close_matches(str(key), annotations, n=1)
        hint = f"did you mean --{similar[0]}?" if similar else "--help lists all keys"
        raise ValueError(f"unknown key --{key}: {ANSWERS.get(key, hint)}")
    return parts_of(annotations[key], type) or [str]


def parts_of(annotation, kind):
    """What is of this kind in the annotation of a field: its types (type), its choices (str) or its range (int).
    Literal["a", "b"] has the choices a and b; Annotated[int, 1, 9] has the type int and the range 1, 9."""
    return [part for part in typing.get_args(annotation) or [annotation] if isinstance(part, kind)]


def convert(key, given, types):
    """The value `given` for `key` as one of its types. Unless str is among them, a string is read as Python would."""
    value = given
    if isinstance(value, str) and str not in types:
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value.capitalize())  # true is True
        if float in types and re.fullmatch(r"[1-9]\d*/[1-9]\d*", str(value)) and Fraction(value) < 1:  # a share
            value = float(Fraction(value))
    if float in types and type(value) is int:
        value = float(str(value))  # 1000…000 is infinite
    if int in types and type(value) is float and value.is_integer():  # 1e5
        value = int(value)
    if type(value) not in types:
        raise ValueError(f"{key}={given!r:.60} must be of type {' or '.join(t.__name__ for t in types)}")
    return os.path.expanduser(value) if Path in types else value


def read_layers(cls, text):
    """Kinds of layers in a text such as "window=1/2 *3 | pos_scheme=none": a list of ({field of cls: value}, count). A
    boolean may be a bare word. ValueError for anything else."""
    kinds = []
    for part in text.split("|"):
        settings = {}
        count = 1
        for word in part.split():
            if word.startswith("*"):
                if not re.fullmatch(r"\*[1-9]\d*", word):
                    raise ValueError(f"{word} must be a count of at least 1, such as *3")
                count = int(word[1:])
            else:
                name, value = parse_flag(cls, word)
                settings[name] = value
        kinds.append((settings, count))
    return kinds


def read_options(defaults, text):
    """The numbers in a text such as "size=32,tau=4", as attributes. Those that it does not set have their defaults.
    ValueError for an unknown name."""
    values = dict(defaults)
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        if name not in values:
            raise ValueError(f"pos_options: there is no option {name!r}; the scheme's: {', '.join(values) or 'none'}")
        values[name] = convert(f"pos_options: {name}", value, (float,))
    return SimpleNamespace(**values)


def at_least(low, settings, *names):
    """ValueError unless each of the settings is at least `low`."""
    for name in names:
        if not getattr(settings, name) >= low:  # NaN is not
            raise ValueError(f"{name}={getattr(settings, name)} must be at least {low}")


def check_values(cfg):
    """ValueError unless each field of cfg holds one of its choices or a number in its range."""
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        choices = parts_of(field.type, str)
        if choices and value not in choices:
            raise ValueError(f"{field.name}={value!r} is not one of: {', '.join(choices)}")
        if type(value) in RANGES:
            low, high = parts_of(field.type, int) or RANGES[type(value)]
            if not low <= value < high:  # NaN is outside every range
                raise ValueError(f"{field.name}={value!r:.60} must be at least {low} and below {high:,}")


def help_text(cls):
    """What the script does, and each of its fields with its default, its choices and its comment, under titles: the
    comments beside the fields and above them, up to a colon, from the source of cls and its bases."""
    titles = {}
    comments = {}
    field = r"(?m)^(?:    # ([^:\n]*).*\n)?    (\w+):[^#\n]*#? *(.*)"
    for base in reversed(cls.__mro__[:-1]):
        for title, name, comment in re.findall(field, inspect.getsource(base)):
            titles[name] = title or titles.get(name)
            comments[name] = comment or comments[name]
    rows = [inspect.getdoc(inspect.getmodule(cls))]
    for field in dataclasses.fields(cls):
        if titles[field.name]:
            rows.append(f"\n{titles[field.name]}:")
        flag = f"--{field.name}={field.default!r}"
        choices = "|".join(parts_of(field.type, str))
        rows.append(f"  {flag:32}  {f'[{choices}] ' * bool(choices)}{comments[field.name]}")
    return "\n".join(rows)
