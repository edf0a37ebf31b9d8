"""Frozen dataclasses to JSON and back, with errors that name the place.

One reader serves every word of the wire. It is strict: a missing, unknown or mistyped field is a :class:`WireError` that
names the path, the value and what is allowed, because a message that is half understood is worse than one refused.

A word that says of itself that neighbours understand it (`neighbours`, beside its `version`) is read in the version before ours
and in the one after it, too: there, and only there, a field that we do not know is passed over. Any other version is a
:class:`VersionError`.

A number that JSON does not have is written as its name (`"NaN"`), and read from that or from the bare word of earlier versions.
A class with `reported = True` holds what a job reports: all its texts and free values, and those of its parts, pass through
`rallypoint.wire.sanitize`, when they are written and when they are read.

Every whole number and every collection has limits, because a script can write any number into the files of its job, and others
allocate and repeat by it. A class names the least and the most of some of its fields in `limits`: the value of a number, the
length of a collection or text, and with `[]` after the name the numbers in a collection. All other numbers are within
`bounds.COUNT`, and all other collections have at most `bounds.VALUES` items.

The groups and sections of a record (`rallypoint.wire.sections`) are written beside its fixed fields, and a key that no section
knows is kept: there alone an unknown field is no error in our own version.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import json
import re
import reprlib
import threading
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from rallypoint.version import __version__
from rallypoint.wire import sanitize
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.fields import (
    defaults_of,
    free_fields,
    has_sections,
    is_message,
    is_reported,
    values_of,
)
from rallypoint.wire.readers import Unexpected, joined, key_of, reader_of

__all__ = [
    "VersionError",
    "WireError",
    "dumps",
    "dumps_item",
    "dumps_lines",
    "dumps_long",
    "from_json",
    "loads",
    "neighbour",
    "prepare",
    "to_json",
]

T = TypeVar("T")

#: Types that JSON has itself.
_PLAIN = frozenset({str, int, bool, type(None)})

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

#: Nested messages and lists that `dumps_long` encodes item by item.
_PARTED = 4

#: Half a pair: what Python makes of bytes in a file name that are no UTF-8. No encoding can hold it.
_SURROGATE = re.compile("[\ud800-\udfff]")


#: Held while a long text is read.
_long = threading.Lock()

#: How much of a value an error shows: it may be megabytes from a stranger, or nested without end.
_SHOWN_TEXT = 1000
_shortened = reprlib.Repr()
_shortened.maxlevel, _shortened.maxlist, _shortened.maxtuple, _shortened.maxdict = 4, 12, 12, 24
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 200


def _shown(value: object) -> str:
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= _SHOWN_TEXT else f"{value[:_SHOWN_TEXT]!r}... ({len(value)} in all)"
    return _shortened.repr(value)


class WireError(RallypointError, ValueError):
    """A JSON value does not have the shape that the wire promises."""

    def __init__(self, path: str, value: object, allowed: str) -> None:
        super().__init__(f"{path or 'value'}: {_shown(value)} is not allowed; expected {allowed}")
        self.path, self.value, self.allowed = path, value, allowed


class VersionError(WireError):
    """What was read was written by a version that is neither ours nor a neighbour of it."""


def neighbour(theirs: object, ours: int) -> bool:
    """Return whether version `theirs` is the one before or after `ours`, False for `ours`; raises `VersionError` otherwise."""
    if type(theirs) is int and theirs >= 1 and abs(theirs - ours) <= 1:
        return theirs != ours
    first = max(1, ours - 1)
    raise VersionError("version", theirs, f"{first} to {ours + 1}, the format versions that Rallypoint {__version__} supports")


def to_json(value: Any) -> Any:
    """Return `value` as plain JSON types; tuples become lists, enums their values, numbers that JSON lacks their names."""
    return _plain(value, reported=False)


def _plain(value: Any, *, reported: bool) -> Any:
    kind: Any = type(value)
    if kind is str:
        return sanitize.clean_text(value) if reported else value
    if kind in _PLAIN:
        return value
    if kind is float:
        return sanitize.clean_float(value)
    if is_message(kind):
        reported = reported or is_reported(kind)
        free = free_fields(kind) if reported else ()
        plain = {
            name: sanitize.clean(item) if name in free else _plain(item, reported=reported)
            for name, item in values_of(value, kind)
        }
        return plain | unknown if (unknown := _unknown(value, kind, reported=reported)) else plain
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item, reported=reported) for item in value]
    if isinstance(value, Mapping):
        return {key_of(key, reported=reported): _plain(item, reported=reported) for key, item in value.items()}
    return value


def from_json(cls: type[T], data: Any, *, path: str = "", lenient: bool = False) -> T:
    """Read `data` (as `json.loads` returns it) as a `cls`; raises `WireError`, and `VersionError` for what is not understood.

    `lenient` passes over fields that we do not know; a word that neighbours understand says by itself when that is right.
    """
    kind: Any = cls
    if getattr(kind, "neighbours", False) and isinstance(data, Mapping):
        ours = defaults_of(kind)["version"]
        lenient = neighbour(data.get("version", ours), ours) or lenient
    try:
        return typing.cast("T", reader_of(kind, lenient, False)(data))
    except Unexpected as wrong:
        raise WireError(joined(path, wrong.path), wrong.value, wrong.allowed) from None


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return the JSON text of a wire value.

    It can always be encoded: a lone surrogate in a text is written as the six characters of its escape, and read back as those.
    """
    return _SURROGATE.sub(_spelled, json.dumps(to_json(value), indent=indent, ensure_ascii=False, allow_nan=False))


def dumps_long(value: Any) -> str:
    """Return what `dumps` does, for a value of megabytes in a thread: others run while it is encoded a part at a time."""
    return "".join(_parts(value, reported=False, depth=_PARTED))


def _parts(value: Any, *, reported: bool, depth: int) -> Iterator[str]:
    kind: Any = type(value)
    if depth and is_message(kind):
        reported, sign = reported or is_reported(kind), "{"
        free = free_fields(kind) if reported else ()
        for name, item in (*values_of(value, kind), *_unknown(value, kind, reported=reported).items()):
            yield f"{sign}{_encode(name)}: "
            yield from _parts(sanitize.clean(item) if name in free else item, reported=reported, depth=depth - 1)
            sign = ", "
        yield "}" if sign != "{" else "{}"
    elif depth and kind is tuple:
        for place, item in enumerate(value):
            yield ", " if place else "["
            yield from _parts(item, reported=reported, depth=depth - 1)
        yield "]" if value else "[]"
    else:
        yield _SURROGATE.sub(_spelled, _encode(_plain(value, reported=reported)))


def dumps_lines(value: Any) -> str:
    """Return the JSON text of a wire value with a line for each of its fields and for each item of a list.

    Inside of the items, what equals its default is left out: the reader puts it there again.
    """
    lines = []
    kind: Any = type(value)
    reported = is_reported(kind)
    free = free_fields(kind) if reported else ()
    for name, field in (*values_of(value, kind), *_unknown(value, kind, reported=reported).items()):
        if name in free:
            text = _encode(sanitize.clean(field))
        elif isinstance(field, tuple) and field:
            text = "[\n  " + ",\n  ".join(dumps_item(item, reported=reported) for item in field) + "\n ]"
        else:
            text = dumps_item(field, reported=reported)
        lines.append(f' "{name}": {text}')
    return _SURROGATE.sub(_spelled, "{\n" + ",\n".join(lines) + "\n}")


def dumps_item(value: Any, *, reported: bool = False) -> str:
    """Return the JSON text of a wire value as `dumps_lines` writes it inside of another: one line, without defaults.

    `reported`: the other one holds what a job reports.
    """
    return _SURROGATE.sub(_spelled, _encode(_slim(value, reported=reported)))


def _slim(value: Any, *, reported: bool) -> Any:
    kind: Any = type(value)
    if kind is tuple:
        return [_slim(item, reported=reported) for item in value]
    if not is_message(kind):
        return _plain(value, reported=reported)
    reported = reported or is_reported(kind)
    free = free_fields(kind) if reported else ()
    told = {}
    defaults = defaults_of(kind)
    for name, item in values_of(value, kind):
        default = defaults[name]
        # Of another type it is no default: 0 and False are equal, but not the same word.
        if item is not default and (type(item) is not type(default) or item != default):
            told[name] = sanitize.clean(item) if name in free else _slim(item, reported=reported)
    return told | _unknown(value, kind, reported=reported)


def _unknown(value: Any, kind: Any, *, reported: bool) -> dict[str, Any]:
    """Return the keys of a record that no registered section reads, as they came."""
    if not has_sections(kind) or not value.sections.unknown:
        return {}
    return {key: sanitize.clean(item) if reported else item for key, item in value.sections.unknown.items()}


def _spelled(found: re.Match[str]) -> str:
    # Two backslashes: JSON's own escape would bring the surrogate back at the reader, who cannot print it either.
    return f"\\\\u{ord(found[0]):04x}"


def loads(cls: type[T], text: str | bytes, *, lenient: bool = False) -> T:
    """Read JSON text as a `cls`, as `from_json` does; raises `WireError` for bad JSON too."""
    if len(text) < sanitize.LONG:
        return _read(cls, text, lenient=lenient)
    with _alone():
        return _read(cls, text, lenient=lenient)


def _read(cls: type[T], text: str | bytes, *, lenient: bool) -> T:
    try:
        data = sanitize.parse(text)
    except ValueError as error:
        raise WireError("", str(text[:80]), f"JSON text ({error})") from error
    return from_json(cls, data, lenient=lenient)


def prepare(*kinds: type) -> None:
    """Make the readers of message classes now, so that the first message does not wait for them."""
    for kind in kinds:
        reader_of(kind, False, False)
        free_fields(kind)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Read one long text at a time, without garbage collection: the event loop of the process waits for both.

    A full collection takes 0.1 s in a process of Airflow, and a hundred thousand new values cause one. They are no garbage.
    """
    with _long:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()
