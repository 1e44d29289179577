"""Settings from config files and the command line: `python train.py config/rope.py --batch_size=32`.

A config file is a list of Python assignments. Files compose: a later one wins, and --key=value wins over all. Every
name must be a field of the script's frozen dataclass, and every value must have the type of its field.
"""

import ast
import contextlib
import dataclasses
import difflib
import inspect
import re
import reprlib
import runpy
import sys
import typing
from pathlib import Path

ALIASES = {  # our name -> what users of nanoGPT type
    "resume": "init_from=resume",
    "max_iters": "lr_decay_iters steps",
    "learning_rate": "lr",
    "start": "prompt",
}


def parse(cls, argv, bare_field=None):
    """(values, files) of a command line: the fields of cls that it sets, and the config files that it names. Arguments
    that are neither flags nor .py files go into bare_field, if there is one: all of them if it is a tuple, otherwise
    one. --help prints the fields and exits. ValueError for anything that does not fit."""
    is_list = bare_field and kinds_of(cls, bare_field) == (tuple,)
    values, flags, files = {}, {}, []
    for arg in argv:
        if arg in ("-h", "--help"):
            print(help_text(cls))
            sys.exit(0)
        if arg.startswith("--"):
            key, given, text = arg[2:].partition("=")
            kinds = kinds_of(cls, arg[2:] if arg == "--init_from=resume" else key)  # nanoGPT's
            if is_list and key == bare_field:
                raise ValueError(f"{key} are given without a flag: {text}")
            if not given and bool not in kinds:
                raise ValueError(f"--{key} needs a value, after an equals sign: --{key}=VALUE")
            flags[key] = convert(key, text if given else True, kinds)
        elif arg.endswith(".py"):
            files.append(arg)
            values |= read_file(cls, arg)
        elif bare_field and (is_list or bare_field not in flags):
            flags[bare_field] = (*flags.get(bare_field, ()), arg) if is_list else arg
        else:
            hint = f": did you mean config/{arg}.py?" if Path("config", f"{arg}.py").is_file() else ""
            hint = f": did you mean --out_dir={arg}?" if Path(arg).is_dir() else hint
            raise ValueError(f"{arg!r} is neither a config file (NAME.py) nor a flag (--key=value){hint}")
    return values | flags, files


def load(cls, argv, bare_field=None):
    """The dataclass that the command line describes."""
    return cls(**parse(cls, argv, bare_field)[0])


def read_file(cls, path):
    """The assignments of one config file, executed in its own namespace."""
    if not Path(path).is_file():
        known = ", ".join(sorted(map(str, Path("config").glob("[!_]*.py"))))
        raise ValueError(f"there is no config file {path}; there are: {known}")
    try:
        names = runpy.run_path(path)
    except Exception as error:
        raise ValueError(f"{path} does not run: {type(error).__name__}: {error}") from error
    names = {k: v for k, v in names.items() if not k.startswith("_") and not inspect.ismodule(v)}
    return checked(cls, names, path)


def checked(cls, values, where):
    """The values, converted to the types of their fields. ValueError for an unknown key or a value of another type."""
    return {key: convert(key, value, kinds_of(cls, key, where)) for key, value in values.items()}


def kinds_of(cls, key, path=""):
    """The types that the field `key` of cls accepts: (int,), or (bool, NoneType) for `bool | None`. ValueError for an
    unknown key of a file or, without a path, of the command line."""
    types = {f.name: f.type for f in dataclasses.fields(cls)}
    if key not in types:
        near = [name for name, others in ALIASES.items() if name in types and key in others.split()]
        near += difflib.get_close_matches(str(key), types, n=1, cutoff=0.6)
        dashes, where = ("", f" in {path}") if path else ("--", "")
        hint = f"did you mean {dashes}{near[0]}?" if near else "--help lists all keys"
        raise ValueError(f"unknown key {dashes}{key}{where}: {hint}")
    return (str,) if choices_of(types[key]) else typing.get_args(types[key]) or (types[key],)


def choices_of(annotation):
    """The choices of a typing.Literal; () for any other annotation."""
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def convert(key, given, kinds):
    """The value `given` for `key` as one of its types. Unless str is among them, a string is read as Python would."""
    value = given
    if isinstance(value, str) and str not in kinds:
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value.capitalize() if value in ("true", "false") else value)
    if type(value) in (int, float) and not abs(value) < 2**53:
        raise ValueError(f"{key}={reprlib.repr(given)} is not a number below {2**53:.0e}")
    if float in kinds and type(value) is int:
        value = float(value)
    if int in kinds and type(value) is float and value.is_integer():  # 1e5
        value = int(value)
    if type(value) not in kinds or (type(value) is tuple and not all(type(item) is str for item in value)):
        raise ValueError(f"{key}={reprlib.repr(given)} must be of type {' or '.join(k.__name__ for k in kinds)}")
    return value


def at_least(low, cfg, *names):
    """ValueError unless each field is at least `low`."""
    for name in names:
        if getattr(cfg, name) < low:
            raise ValueError(f"{name}={getattr(cfg, name)} must be at least {low}")


def check_choices(cfg):
    """ValueError unless each field that is annotated as a Literal holds one of its choices."""
    for f in dataclasses.fields(cfg):
        choices, value = choices_of(f.type), getattr(cfg, f.name)
        if choices and value not in choices:
            raise ValueError(f"{f.name}={value!r} is not one of: {', '.join(choices)}")


def help_text(cls):
    """What the script does, and each of its fields with its default, its choices and the comment beside it in the
    source. The comment line above fields is their title, up to a colon."""
    comments, titles, title = {}, {}, ""
    for line in "".join(inspect.getsource(base) for base in reversed(cls.__mro__[:-1])).splitlines():
        if found := re.match(r"    # ([^:]*)", line):
            title = found[1]
        elif found := re.match(r"    (\w+):[^#]*#?\s*(.*)", line):
            comments[found[1]], titles[found[1]] = found[2] or comments.get(found[1], ""), title
    fields, parts = dataclasses.fields(cls), {}
    width = max(len(f"{f.name}={f.default!r}") for f in fields)
    for f in fields:
        choices = f"[{'|'.join(choices_of(f.type))}] " if choices_of(f.type) else ""
        row = f"  --{f'{f.name}={f.default!r}':{width}}  {choices}{comments[f.name]}"
        parts.setdefault(titles[f.name], [f"{titles[f.name]}:"]).append(row)
    return "\n\n".join([inspect.getdoc(inspect.getmodule(cls)) or "", *map("\n".join, parts.values())])
