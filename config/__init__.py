"""
Settings from config files and the command line: `python train.py config/rope.py --batch_size=32`.

A config file is plain Python assignments. Files compose, a later one wins, and --key=value wins over all. Every
name must be a field of the script's frozen dataclass, and every value is held against the field's annotation.
"""

import ast
import dataclasses
import difflib
import inspect
import os
import re
import runpy
import signal
import sys
import typing
from pathlib import Path


def script(main):
    """Exits with main(argv)'s status. A user's mistake, a ValueError or OSError, is one line and status 2, without a
    traceback. After Ctrl-C the process dies of the signal, as a shell's loop over runs must see to end, too."""
    try:
        status = main(sys.argv[1:])
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(status)


def parse(cls, argv, list_field=None):
    """(values, files) of a command line: what it sets of the fields of cls, and the config files it names.

    Arguments that are neither flags nor .py files are collected under list_field, where there is one. --help prints
    the fields with their defaults and comments and exits. Raises ValueError for whatever does not fit."""
    values, flags, files, rest = {}, {}, [], []
    for arg in argv:
        if arg in ("-h", "--help"):
            print(help_text(cls))
            sys.exit(0)
        if arg.startswith("--"):
            key, given, text = arg[2:].partition("=")
            check_key(cls, key, "the command line")
            if not given and bool not in _types(cls)[key]:
                raise ValueError(f"--{key} needs a value: --{key}=VALUE")
            flags[key] = convert(cls, key, text if given else True)
        elif arg.endswith(".py"):
            files.append(arg)
            values |= read_file(cls, arg)
        elif list_field:
            rest.append(arg)
        else:
            known = Path("config", f"{arg}.py")
            hint = f": did you mean {known}?" if known.is_file() else ""
            hint = f": did you mean --out_dir={arg}?" if Path(arg).is_dir() else hint
            raise ValueError(f"{arg!r} is neither a config file (NAME.py) nor a flag (--key=value){hint}")
    values |= flags
    if rest:
        values[list_field] = tuple(rest)
    return values, files


def load(cls, argv, list_field=None):
    """The dataclass that the command line describes."""
    return cls(**parse(cls, argv, list_field)[0])


def read_file(cls, path):
    """The assignments of one config file, run in a namespace of its own."""
    if not Path(path).is_file():
        known = ", ".join(sorted(str(p) for p in Path(path).parent.glob("*.py") if p.name != "__init__.py"))
        raise ValueError(f"there is no config file {path}" + (f"; there are: {known}" if known else ""))
    try:
        names = runpy.run_path(path)
    except Exception as error:
        raise ValueError(f"{path} does not run: {type(error).__name__}: {error}") from error
    names = {k: v for k, v in names.items() if not k.startswith("_") and not inspect.ismodule(v)}
    for key in names:
        check_key(cls, key, path)
    return {key: convert(cls, key, value) for key, value in names.items()}


def check_key(cls, key, where):
    if key not in _types(cls):
        near = difflib.get_close_matches(key, _types(cls), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "--help lists all keys"
        raise ValueError(f"unknown key {key!r} in {where}: {hint}")


def convert(cls, key, value):
    """value as the type of the field `key`: a string from the command line is read as Python would read it."""
    kinds, given = _types(cls)[key], value
    if str not in kinds and isinstance(value, str):
        try:
            value = ast.literal_eval(value.capitalize() if value in ("true", "false") else value)
        except (ValueError, SyntaxError):
            pass
    if float in kinds and type(value) is int:
        value = float(value)
    if int in kinds and type(value) is float and value.is_integer():  # 1e5
        value = int(value)
    if type(value) not in kinds:
        raise ValueError(f"{key}={given!r} must be of type {' or '.join(k.__name__ for k in kinds)}")
    return value


def at_least(low, cfg, *names):
    """ValueError unless each field is at least `low`."""
    for name in names:
        if getattr(cfg, name) < low:
            raise ValueError(f"{name}={getattr(cfg, name)} must be at least {low}")


def one_of(choices, cfg, name):
    """ValueError unless the field is one of `choices`."""
    if getattr(cfg, name) not in choices:
        raise ValueError(f"{name}={getattr(cfg, name)!r} is not one of: {', '.join(choices)}")


def help_text(cls):
    """What the script does, and each field with its default and the comment beside it."""
    comments = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, comment in re.findall(r"^    (\w+):[^#\n]*(?:#\s*(.*))?$", inspect.getsource(base), re.M):
            comments[name] = comment or comments.get(name, "")
    doc = inspect.getdoc(inspect.getmodule(cls)) or ""
    rows = [
        (f"--{f.name}={f.default!r}" if f.default != "" else f"--{f.name}=''", comments.get(f.name, ""))
        for f in dataclasses.fields(cls)
    ]
    width = max(len(left) for left, _ in rows)
    return f"{doc}\n\n" + "\n".join(f"  {left:{width}}  {comment}".rstrip() for left, comment in rows)


def _types(cls):
    """field name -> the types it takes: (int,), or (bool, NoneType) for `bool | None`."""
    return {f.name: typing.get_args(f.type) or (f.type,) for f in dataclasses.fields(cls)}
