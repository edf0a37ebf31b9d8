"""What is taken of an object that anybody may have written: values of the expected type, within limits. Pure.

A watch keeps what it takes for hours, and others write the objects: any user of the namespace, a controller, an API server of
somebody else. So each value is read by one of these functions: one of another type is as if it were absent, and a longer text
is cut. What is kept then has a largest size, and `memory_of` counts it without knowing its fields.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

__all__ = ["MESSAGE", "NAME", "WORD", "Texts", "entries", "fields", "identity", "memory_of", "number", "words"]

#: Characters of a name of Kubernetes at most: of an object, a machine, a container. A key of a label has a prefix, too.
NAME = 253 + 1 + 63

#: Characters of a word that a controller chooses: a reason, a phase, an address.
WORD = 1024

#: Characters of a sentence for people. Ray puts the last 20,000 characters of a log into one.
MESSAGE = 32 << 10

#: Characters of all texts of one object together, except its names.
_ALL = 128 << 10

#: What an object without slots needs besides its fields, and for each of them.
_OWN, _FIELD = 112, 8

#: Types of which each value exists only once in a process.
_SHARED = (enum.Enum, bool, type(None))


class Texts:
    """The texts of one object, which share a limit: who writes many long ones leaves none for the last."""

    def __init__(self) -> None:
        self._left = _ALL

    def cut(self, value: object, limit: int = WORD) -> str:
        """Return a text, cut to the limit; "" for anything else."""
        if not isinstance(value, str):
            return ""
        taken = value[: min(limit, self._left)]
        self._left -= len(taken)
        return taken


def identity(value: object) -> str:
    """Return a name, a uid or a version, by which an object is told from others; "" for what cannot be one."""
    return value if isinstance(value, str) and len(value) <= NAME and value.isascii() else ""


def fields(value: object) -> Mapping[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def entries(value: object, most: int) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings among the first `most` values of a list; none of anything else."""
    return (one for one in (value[:most] if isinstance(value, list) else ()) if isinstance(one, dict))


def words(value: object, most: int) -> Iterator[str]:
    """Yield the names among the first `most` values of a list; none of anything else."""
    return filter(None, map(identity, value[:most] if isinstance(value, list) else ()))


def number(value: object) -> int:
    """Return a number within 32 bits, as Kubernetes counts: the nearest one for a larger one, 0 for anything else."""
    return max(-(1 << 31), min(value, (1 << 31) - 1)) if isinstance(value, int) and not isinstance(value, bool) else 0


#: What gives the parts of an object, and bytes of its own (see `_layout`).
Layout = tuple[Callable[[Any], Iterable[object]] | None, int]


def memory_of(kept: object) -> int:
    """Return the bytes of a frozen value and of all that it holds, each object once; whatever its fields are."""
    total = 0
    rest: list[Any] = [kept]
    counted: set[int] = set()
    while rest:
        one = rest.pop()
        parts, own = _LAYOUTS[type(one)]
        if own < 0 or id(one) in counted:
            continue
        counted.add(id(one))
        total += sys.getsizeof(one) + own
        if parts is not None:
            rest += parts(one)
    return total


def _layout(kind: type) -> Layout:
    """Return what gives the parts of an object, None for one without any, and its bytes that `sys.getsizeof` does not say.

    Values that exist only once in a process have a negative number of bytes.
    """
    if issubclass(kind, _SHARED):
        return None, -1
    if issubclass(kind, (tuple, list, set, frozenset)):
        return iter, 0
    if issubclass(kind, Mapping):
        return lambda one: itertools.chain(one, one.values()), 0
    if not dataclasses.is_dataclass(kind):
        return None, 0
    names = tuple(field.name for field in dataclasses.fields(kind))
    own = 0 if "__slots__" in kind.__dict__ else _OWN + _FIELD * len(names)
    # Of one name it returns the value itself, and of none there is no getter.
    return (operator.attrgetter(*names) if len(names) > 1 else lambda one: [getattr(one, name) for name in names]), own


class _Layouts(dict[type, Layout]):
    """Those of the classes that were met."""

    def __missing__(self, kind: type) -> Layout:
        found = self[kind] = _layout(kind)
        return found


_LAYOUTS = _Layouts()
