"""The error of an invalid job, with all problems of the document, one per line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rallypoint.wire.errors import RallypointError

__all__ = ["JobError", "Problem", "Step", "dotted", "show"]

#: One step of a path in the document: a key or an index.
Step = str | int

_SHOWN = 80


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


def dotted(steps: Iterable[Step]) -> str:
    """Return a path as it is written in errors: `roles[0].env.DEBUG`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def show(value: object) -> str:
    """Return `value` as YAML text, in at most 80 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
