"""The error of an invalid job, with all problems of the document, one per line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rallypoint.wire.errors import RallypointError

__all__ = ["JobError", "Problem", "Step", "dotted", "redacting", "show"]

#: One step of a path in the document: a key or an index.
Step = str | int

_SHOWN = 80

#: Containers within each other that are searched for secrets.
_DEPTH = 32

#: Returns the text that is shown for a value with a name; "" is a value without one.
Redact = Callable[[str, str], str]

_redact: ContextVar[Redact | None] = ContextVar("redact", default=None)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem at `path` of the document, and the allowed values."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class JobError(RallypointError):
    """A job cannot be read or is not valid.

    Not a `ValueError`, so that pydantic passes it on as it is.

    Attributes:
        problems: every problem found, in the order of the document's fields.
        source: the file that was read; "" for a dict or keyword arguments.
    """

    def __init__(self, problems: Iterable[Problem], source: str = "") -> None:
        self.problems, self.source = tuple(problems), source
        super().__init__(self.problems, source)

    def __str__(self) -> str:
        header = (f"{self.source} is not a valid job:",) if self.source else ()
        return "\n".join((*header, *map(str, self.problems)))

    def with_source(self, source: str) -> JobError:
        """Return this error as one of the file `source`."""
        return JobError(self.problems, source)


@contextlib.contextmanager
def redacting(redact: Redact) -> Iterator[None]:
    """Hide secrets in all errors of this context.

    Secrets are replaced before a value is cut or quoted, because a search for a secret would not find a part of it.
    """
    token = _redact.set(redact)
    try:
        yield
    finally:
        _redact.reset(token)


def dotted(steps: Iterable[Step]) -> str:
    """Return a path as it is written in errors: `roles[0].env.DEBUG`."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
    redact = _redact.get()
    return path if redact is None else redact("", path)


def show(value: object) -> str:
    """Return `value` as YAML text, in at most 80 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    redact = _redact.get()
    text = repr(value if redact is None else _redacted(value, "", redact, _DEPTH))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


class _Quoted(str):
    """A text whose `repr` is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _redacted(value: Any, name: str, redact: Redact, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return redact(name, value)
    if not isinstance(value, (Mapping, list, tuple)):
        return _Quoted(redact(name, repr(value)))
    if not depth:
        return _Quoted("...")
    if isinstance(value, Mapping):
        pairs = ((key, key if isinstance(key, str) else "", item) for key, item in value.items())
        return {_redacted(key, "", redact, 0): _redacted(item, word, redact, depth - 1) for key, word, item in pairs}
    items = [_redacted(item, name, redact, depth - 1) for item in value]
    return items if isinstance(value, list) else tuple(items)
