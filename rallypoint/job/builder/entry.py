"""Entrypoints of the builder's methods: one text with a function, a module or a script, and arguments. Pure."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath
from typing import Any

from rallypoint.job.values import FUNCTION, MODULE, RefusedError

__all__ = ["ENTRY_ALLOWED", "read_entry"]

ENTRY_ALLOWED = (
    "a function or class (pkg.module.name, pkg.module:name), a script with its arguments (train.py --lr 1), or a module "
    "(-m pkg.train)"
)
_DOTTED = re.compile(rf"({MODULE.pattern})\.([^\W\d]\w*)")


def read_entry(text: object) -> dict[str, Any]:
    """Return the fields of a role that an entrypoint sets: `entrypoint`, and `args` where there are any.

    Raises `RefusedError` for everything that could only fail when the job runs.
    """
    if not isinstance(text, str):
        raise RefusedError(ENTRY_ALLOWED)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RefusedError(f"balanced quotes ({str(error).lower()})") from error
    if not words:
        raise RefusedError(ENTRY_ALLOWED)
    first, *rest = words
    if re.fullmatch(r"python[\d.]*", PurePosixPath(first).name):
        raise RefusedError(f"no Python interpreter before the script; leave out {first!r}")
    if first == "-m":
        return _module(rest)
    if first.endswith(".py"):
        plain = first if not re.search(r"\s", first) and not first.startswith("-") else {"script": first}
        return {"entrypoint": plain, **_args(rest)}
    return _function(first, rest)


def _module(rest: list[str]) -> dict[str, Any]:
    if not rest or not MODULE.fullmatch(rest[0]):
        raise RefusedError("one dotted module name after -m")
    return {"entrypoint": f"-m {rest[0]}", **_args(rest[1:])}


def _function(first: str, rest: list[str]) -> dict[str, Any]:
    named = FUNCTION.fullmatch(first)
    dotted = _DOTTED.fullmatch(first)
    if named is None and dotted is None:
        raise RefusedError(ENTRY_ALLOWED)
    if rest:
        raise RefusedError(f"no arguments after a function; {first} is called without arguments")
    module, name = (named[1], named[2]) if named else (first.rpartition(".")[0], first.rpartition(".")[2])
    return {"entrypoint": f"{module}:{name}"}


def _args(words: list[str]) -> dict[str, Any]:
    return {"args": words} if words else {}
