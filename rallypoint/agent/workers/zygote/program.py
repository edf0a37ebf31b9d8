"""A Python command line, read as Python reads it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from rallypoint.wire.python import module_of

__all__ = ["Program", "What", "parse"]


class What(enum.Enum):
    """What Python is given to run."""

    SCRIPT = "script"  #: a file, a folder or an archive
    MODULE = "module"  #: `-m NAME`
    CODE = "code"  #: `-c TEXT`


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is run, and the arguments behind it."""

    what: What
    name: str
    args: tuple[str, ...]
    ours: bool = False  #: a module that finds no module in the current folder (wire/python.py)


def parse(argv: Sequence[str]) -> Program | None:
    """Return the program of `PYTHON [-u] [-m NAME | -c TEXT | FILE] ARGS`; None where there is another option of Python."""
    rest = list(argv[1:])
    if rest[:1] == ["-u"]:
        rest = rest[1:]
    ours = module_of(rest)
    if ours is not None:
        return Program(what=What.MODULE, name=ours, args=tuple(rest[3:]), ours=True)
    if len(rest) >= 2 and rest[0] in ("-m", "-c"):
        return Program(what=What.MODULE if rest[0] == "-m" else What.CODE, name=rest[1], args=tuple(rest[2:]))
    if rest and not rest[0].startswith("-"):
        return Program(what=What.SCRIPT, name=rest[0], args=tuple(rest[1:]))
    return None
