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
import reprlib
import runpy
import sys
import typing
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

VERSION = "0.1.0"
PathName = typing.Annotated[str, Path]  # the type of a setting that may be a path: `~` is the home folder
ALIASES = {  # what users of nanoGPT type -> our name
    "init_from=resume": "resume",
    "lr_decay_iters": "max_iters",
    "lr": "learning_rate",
    "prompt": "start",
}


def parse(cls, argv, bare_field=None):
    """(values, files) of a command line: the fields of cls that it sets, and the config files that it names. Arguments
    that are neither flags nor .py files go into bare_field, if there is one: all of them if it is a tuple, otherwise
    one. --help prints the fields and exits. ValueError for anything that does not fit."""
    takes_many = bare_field and types_of(cls, bare_field) == (tuple,)
    values = {}
    flags = {}
    files = []
    for arg in map(os.path.expanduser, argv):
        if arg in ("-h", "--help", "--version"):
            print(f"Lengthwise {VERSION}" if arg == "--version" else help_text(cls))
            sys.exit(0)
        if arg.startswith("--"):
            key, value = parse_flag(cls, arg)
            flags[key] = value
        elif arg.endswith(".py"):
            files.append(arg)
            values |= read_file(cls, arg)
        elif bare_field and (takes_many or bare_field not in flags):
            flags[bare_field] = (*flags.get(bare_field, ()), arg) if takes_many else arg
        else:
            raise ValueError(
                f"{arg!r} is neither a config file nor a flag: did you mean --out_dir={arg} or config/{arg}.py?"
            )
    return values | flags, files


def parse_flag(cls, arg):
    """(key, value) of --key=value, or of --key alone for a boolean."""
    key, equals, text = arg.removeprefix("--").partition("=")
    if arg == "--init_from=resume":  # nanoGPT's: no field has this name
        key = "init_from=resume"
    types = types_of(cls, key)
    if not equals and bool not in types:
        raise ValueError(f"--{key} needs a value, after an equals sign: --{key}=VALUE")
    return key, convert(key, text if equals else True, types)


def load(cls, argv, bare_field=None):
    """The dataclass that the command line describes."""
    return cls(**parse(cls, argv, bare_field)[0])


def read_file(cls, path):
    """The assignments of one config file, executed in its own namespace."""
    if not Path(path).is_file():
        files = ", ".join(sorted(map(str, Path("config").glob("[!_]*.py"))))
        raise ValueError(f"there is no config file {path}; there are: {files}")
    try:
        names = runpy.run_path(path)
    except Exception as error:
        raise ValueError(f"{path} does not run: {type(error).__name__}: {error}") from error
    values = {name: value for name, value in names.items() if not name.startswith("_") and not inspect.ismodule(value)}
    return checked(cls, values, path)


def checked(cls, values, where):
    """The values, converted to the types of their fields. ValueError for an unknown key or a value of another type."""
    return {key: convert(key, value, types_of(cls, key, where)) for key, value in values.items()}


def types_of(cls, key, path=""):
    """The types that the field `key` of cls accepts: (int,), (bool, NoneType) for `bool | None`, (str, Path) for a
    PathName. ValueError for an unknown key of a file or, without a path, of the command line."""
    annotations = {field.name: field.type for field in dataclasses.fields(cls)}
    if key not in annotations:
        names = [ALIASES.get(key), *difflib.get_close_matches(str(key), annotations, n=1)]
        hint = next((f"did you mean --{name}?" for name in names if name in annotations), "--help lists all keys")
        where = f" in {path}" if path else ""
        raise ValueError(f"unknown key --{key}{where}: {hint}")
    if choices_of(annotations[key]):
        return (str,)
    return typing.get_args(annotations[key]) or (annotations[key],)


def choices_of(annotation):
    """The choices of a typing.Literal; () for any other annotation."""
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def convert(key, given, types):
    """The value `given` for `key` as one of its types. Unless str is among them, a string is read as Python would."""
    value = given
    if isinstance(value, str) and str not in types:
        if value in ("true", "false"):
            value = value.capitalize()
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value)
        if float in types and re.fullmatch(r"[1-9]\d*/[1-9]\d*", str(value)):
            if Fraction(value) >= 1:
                raise ValueError(f"{key}={given}: a share must be below 1")
            value = float(Fraction(value))
    if float in types and type(value) is int:
        value = float(value)
    if int in types and type(value) is float and value.is_integer():  # 1e5
        value = int(value)
    if type(value) not in types:
        raise ValueError(f"{key}={reprlib.repr(given)} must be of type {' or '.join(t.__name__ for t in types)}")
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


def check_choices(cfg):
    """ValueError unless each field that is annotated as a Literal holds one of its choices."""
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        choices = choices_of(field.type)
        if choices and value not in choices:
            raise ValueError(f"{field.name}={value!r} is not one of: {', '.join(choices)}")


def help_text(cls):
    """What the script does, and each of its fields with its default, its choices and its comment, under titles."""
    comments = field_comments(cls)
    parts = {}  # title -> rows
    for field in dataclasses.fields(cls):
        title, comment = comments[field.name]
        flag = f"--{field.name}={field.default!r}"
        choices = "|".join(choices_of(field.type))
        if choices:
            comment = f"[{choices}] {comment}"
        parts.setdefault(title, [f"{title}:"]).append(f"  {flag:32}  {comment}")
    return "\n\n".join([inspect.getdoc(inspect.getmodule(cls)), *map("\n".join, parts.values())])


def field_comments(cls):
    """{field: (title, comment)} from the source of cls and its bases: the comment beside a field, and the comment line
    above it, up to a colon."""
    comments = {}
    title = ""
    for base in reversed(cls.__mro__[:-1]):
        lines = re.findall(r"^    (?:# ([^:\n]*)|(\w+):[^#\n]*#? *(.*))", inspect.getsource(base), re.MULTILINE)
        for new_title, name, comment in lines:
            title = new_title or title
            if name:
                comments[name] = title, comment or comments[name][1]
    return comments
