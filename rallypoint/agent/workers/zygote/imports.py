"""Which modules a script imports, read from its text: what a node that joins can import before it has run the script once."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from rallypoint.agent.workers.zygote.program import What, parse

__all__ = ["imported_by", "imports_of"]

#: Bytes of a script that is read; names that are taken from one, and characters of each: together they fit into one packet.
_SIZE, _NAMES, _LENGTH = 1 << 20, 400, 120


def imported_by(argv: Sequence[str], place: str) -> tuple[str, ...]:
    """Return the modules that a Python command line imports at its top level; empty where that cannot be read.

    `place` is the folder of the script's own modules.
    """
    program = parse(argv)
    if program is None or program.what is What.CODE:
        return imports_of(program.name) if program is not None else ()
    path = Path(place, Path(program.name).name) if program.what is What.SCRIPT else _module_file(program.name, place)
    if path is None:
        return ()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return imports_of(file.read(_SIZE))
    except OSError:  # the worker's own start tells what is wrong with it
        return ()


def imports_of(text: str) -> tuple[str, ...]:
    """Return the modules that the text of a program imports at its top level, each once, in order."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = (name for statement in _statements(tree.body) for name in _names(statement) if len(name) <= _LENGTH)
    return tuple(dict.fromkeys(names))[:_NAMES]


def _module_file(name: str, place: str) -> Path | None:
    beside = Path(place, *name.split("."))
    for path in (beside.with_suffix(".py"), beside / "__main__.py"):
        if path.is_file():
            return path
    with contextlib.suppress(ImportError, ValueError):
        top = importlib.util.find_spec(name.partition(".")[0])  # imports nothing
        for folder in (top.submodule_search_locations or ()) if top is not None else ():
            inside = Path(folder, *name.split(".")[1:])
            found = next((path for path in (inside.with_suffix(".py"), inside / "__main__.py") if path.is_file()), None)
            if found is not None:
                return found
    return None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what is run whenever the program is, without conditions; an import that is tried may fail."""
    for statement in body:
        if isinstance(statement, ast.Try):
            yield from _statements(statement.body)
        else:
            yield statement


def _names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        yield statement.module
