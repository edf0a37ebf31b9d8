"""What workers run: a command, or a Python function that is laid into a file for them."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.wire import codec
from rallypoint.wire.launched import ARGUMENTS, LAUNCHED_MODULE, PICKLE, SentCall
from rallypoint.wire.plan import Entry

__all__ = ["Entrypoint", "lay_down", "name_of", "read_entrypoint"]


@dataclass(frozen=True, kw_only=True)
class Entrypoint:
    """The part of a plan that says what is run; `name` is for people."""

    entry: Entry
    entrypoint: str
    args: tuple[str, ...]
    name: str


def name_of(entrypoint: Callable[..., Any] | str | None, args: Sequence[object]) -> str:
    """Return how messages call an entrypoint, as torch does: "" for none.

    A function has its own name, and the interpreter that of the first argument which is no flag.
    """
    if entrypoint is None:
        return ""
    if not isinstance(entrypoint, str):
        return str(getattr(entrypoint, "__name__", None) or getattr(entrypoint, "__qualname__", type(entrypoint).__name__))
    if entrypoint == sys.executable:
        return next((str(arg) for arg in args if not str(arg).startswith("-")), "")
    return entrypoint


def read_entrypoint(entrypoint: Callable[..., Any] | str | None, args: Sequence[object], folder: Path) -> Entrypoint:
    """Return what each worker runs; `folder` is where a function will be laid down. Raises `ValueError`."""
    name = name_of(entrypoint, args)
    if callable(entrypoint):
        return Entrypoint(entry=Entry.MODULE, entrypoint=LAUNCHED_MODULE, args=(str(folder),), name=name)
    if not isinstance(entrypoint, str) or not entrypoint:
        raise ValueError(f"entrypoint: {entrypoint!r} is not allowed; expected a function or the name of a program")
    words = tuple(os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg) for arg in args)
    if entrypoint == sys.executable:
        return _python(words, name)
    return Entrypoint(entry=Entry.COMMAND, entrypoint=entrypoint, args=words, name=name)


def _python(words: tuple[str, ...], name: str) -> Entrypoint:
    """Tell a script or module from other command lines of Python: only those two may be started from a warm interpreter."""
    rest = words[1:] if words[:1] == ("-u",) else words
    if len(rest) > 1 and rest[0] == "-m":
        return Entrypoint(entry=Entry.MODULE, entrypoint=rest[1], args=rest[2:], name=name)
    if rest and not rest[0].startswith("-"):
        return Entrypoint(entry=Entry.SCRIPT, entrypoint=rest[0], args=rest[1:], name=name)
    return Entrypoint(entry=Entry.COMMAND, entrypoint=sys.executable, args=words, name=name)


def lay_down(folder: Path, function: Callable[..., Any], args: Sequence[Any], name: str) -> None:
    """Write a function and its arguments into `folder`, readable by us alone; raises `ValueError` for what cannot be pickled.

    cloudpickle takes lambdas, closures and what the main program defines along; where it is not installed, the plain pickle
    must do, which takes functions that can be imported.
    """
    try:
        import cloudpickle  # noqa: PLC0415  an extra
    except ImportError:
        cloudpickle = pickle
    try:
        pickled = cloudpickle.dumps((function, tuple(args)))
    except Exception as error:
        raise ValueError(f"entrypoint: {name} or one of its args cannot be pickled: {type(error).__name__}: {error}") from error
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    sent = SentCall(name=name, python=version, sys_path=tuple(sys.path))
    _write(folder / PICKLE, pickled)
    _write(folder / ARGUMENTS, codec.dumps(sent).encode())


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
