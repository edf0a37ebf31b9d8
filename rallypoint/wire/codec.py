"""Frozen dataclasses to JSON and back, with errors that name the place.

One reader serves every word of the wire. It is strict: a missing, unknown or mistyped field is a :class:`WireError` that
names the path, the value and what is allowed, because a message that is half understood is worse than one refused.

A word that says of itself that neighbours understand it (`neighbours`, beside its `version`) is read in the version before ours
and in the one after it, too: there, and only there, a field that we do not know is passed over. Any other version is a
:class:`VersionError`.

A number that JSON does not have is written as its name (`"NaN"`), and read from that or from the bare word of earlier versions.
A class with `reported = True` holds what a job reports: all its texts and free values, and those of its parts, pass through
`rallypoint.wire.sanitize`, when they are written and when they are read.

A class with `limits` names the least and the most value of some numbers, or the length of a text. Each number that decides
how much is allocated or how often something is done has such limits: a script can write any number into the files of its job.

The sections of a record (`rallypoint.wire.sections`) are written beside its fixed fields, and a key that no section knows is
kept: there alone an unknown field is no error in our own version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import gc
import json
import math
import re
import reprlib
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from rallypoint.version import __version__
from rallypoint.wire import sanitize, sections
from rallypoint.wire.errors import RallypointError

__all__ = [
    "VersionError",
    "WireError",
    "dumps",
    "dumps_item",
    "dumps_lines",
    "from_json",
    "loads",
    "neighbour",
    "to_json",
]

T = TypeVar("T")

#: Types that JSON has itself.
_PLAIN = frozenset({str, int, bool, type(None)})

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

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
    raise VersionError("version", theirs, f"{first} to {ours + 1}, the versions supported by Rallypoint {__version__}")


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
    if _is_word(kind):
        reported = reported or _is_reported(kind)
        free = _free(kind) if reported else ()
        plain = {
            name: sanitize.clean(item) if name in free else _plain(item, reported=reported)
            for name, item in _items(value, kind)
        }
        return plain | _unknown(value, kind, reported=reported) if _has_sections(kind) else plain
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item, reported=reported) for item in value]
    if isinstance(value, Mapping):
        return {_key(key, reported=reported): _plain(item, reported=reported) for key, item in value.items()}
    return value


def _key(key: Any, *, reported: bool) -> str:
    return sanitize.clean_text(str(key), sanitize.KEY_LIMIT) if reported else str(key)


def from_json(cls: type[T], data: Any, *, path: str = "", lenient: bool = False) -> T:
    """Read `data` (as `json.loads` returns it) as a `cls`; raises `WireError`, and `VersionError` for what is not understood.

    `lenient` passes over fields that we do not know; a word that neighbours understand says by itself when that is right.
    """
    kind: Any = cls
    if getattr(kind, "neighbours", False) and isinstance(data, Mapping):
        ours = _defaults(kind)["version"]
        lenient = neighbour(data.get("version", ours), ours) or lenient
    try:
        return typing.cast("T", _reader(kind, lenient, False)(data))
    except _Wrong as wrong:
        raise WireError(_joined(path, wrong.path), wrong.value, wrong.allowed) from None


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return the JSON text of a wire value.

    It can always be encoded: a lone surrogate in a text is written as the six characters of its escape, and read back as those.
    """
    return _SURROGATE.sub(_spelled, json.dumps(to_json(value), indent=indent, ensure_ascii=False, allow_nan=False))


def dumps_lines(value: Any) -> str:
    """Return the JSON text of a wire value with a line for each of its fields and for each item of a list.

    Inside of the items, what equals its default is left out: the reader puts it there again.
    """
    lines = []
    kind: Any = type(value)
    reported = _is_reported(kind)
    free = _free(kind) if reported else ()
    for name, field in (*_items(value, kind), *_unknown(value, kind, reported=reported).items()):
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
    if not _is_word(kind):
        return _plain(value, reported=reported)
    reported = reported or _is_reported(kind)
    free = _free(kind) if reported else ()
    told = {}
    defaults = _defaults(kind)
    for name, item in _items(value, kind):
        default = defaults[name]
        # Of another type it is no default: 0 and False are equal, but not the same word.
        if item is not default and (type(item) is not type(default) or item != default):
            told[name] = sanitize.clean(item) if name in free else _slim(item, reported=reported)
    return told | _unknown(value, kind, reported=reported) if _has_sections(kind) else told


def _items(value: Any, kind: Any) -> list[tuple[str, Any]]:
    """Return each field of a dataclass with its value: the fixed ones, and those of all sections."""
    items = [(name, getattr(value, name)) for name in _fixed(kind)]
    for section in _sections(kind):
        of_section = section.of(value)
        items += ((name, getattr(of_section, name)) for name in _defaults(section))
    return items


def _unknown(value: Any, kind: Any, *, reported: bool) -> dict[str, Any]:
    """Return the keys of a record that no registered section reads, as they came."""
    if not _has_sections(kind) or not value.sections.unknown:
        return {}
    return {key: sanitize.clean(item) if reported else item for key, item in value.sections.unknown.items()}


@functools.cache
def _is_word(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


@functools.cache
def _is_reported(kind: Any) -> bool:
    return bool(getattr(kind, "reported", False))


@functools.cache
def _has_sections(kind: Any) -> bool:
    return any(field.name == sections.FIELD for field in dataclasses.fields(kind))


@functools.cache
def _sections(kind: Any) -> tuple[Any, ...]:
    return sections.of_record(kind) if _has_sections(kind) else ()


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, those of its sections included."""
    hints = typing.get_type_hints(kind)
    own = {name: hints[name] for name in _fixed(kind)}
    return own | {name: hint for section in _sections(kind) for name, hint in _hints(section).items()}


@functools.cache
def _free(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass that hold any JSON value."""
    return frozenset(name for name, hint in _hints(kind).items() if hint is Any or Any in typing.get_args(hint))


@functools.cache
def _fixed(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.name != sections.FIELD)


@functools.cache
def _defaults(cls: Any) -> dict[str, Any]:
    """Return the fields of a dataclass and of its sections with their defaults: a value of its own for one that has none."""
    own = {f.name: _default(f) for f in dataclasses.fields(cls) if f.name != sections.FIELD}
    return own | {name: default for section in _sections(cls) for name, default in _defaults(section).items()}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _spelled(found: re.Match[str]) -> str:
    # Two backslashes: JSON's own escape would bring the surrogate back at the reader, who cannot print it either.
    return f"\\\\u{ord(found[0]):04x}"


def loads(cls: type[T], text: str | bytes, *, lenient: bool = False) -> T:
    """Read JSON text as a `cls`, as `from_json` does; raises `WireError` for bad JSON too."""
    with _alone() if len(text) >= sanitize.LONG else contextlib.nullcontext():
        try:
            data = sanitize.parse(text)
        except ValueError as error:
            raise WireError("", str(text[:80]), f"JSON text ({error})") from error
        return from_json(cls, data, lenient=lenient)


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


# --- Readers: one for each type, made once ---------------------------------------------------------------------------------

_Reader = Callable[[Any], Any]


class _Wrong(Exception):  # noqa: N818  it never leaves this module
    """What a reader did not expect, and where; whoever is around it puts its own place in front."""

    def __init__(self, value: object, allowed: str, path: str = "") -> None:
        super().__init__(path, allowed)
        self.value, self.allowed, self.path = value, allowed, path

    def under(self, place: str) -> _Wrong:
        return _Wrong(self.value, self.allowed, _joined(place, self.path))


def _joined(place: str, path: str) -> str:
    return f"{place}{path}" if not path or path.startswith("[") else f"{place}.{path}".lstrip(".")


@functools.cache
def _reader(kind: Any, lenient: bool, reported: bool) -> _Reader:  # noqa: FBT001  they are keys of the cache
    if kind is Any:
        return sanitize.clean if reported else _anything
    if kind is str and reported:
        return _reported_text
    origin, arms = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(_reader(next(arm for arm in arms if arm is not type(None)), lenient, reported))
    if origin is tuple:
        return _tuple_of(_reader(arms[0], lenient, reported))
    if origin in (dict, Mapping):
        return _dict_of(_reader(arms[1], lenient, reported), reported=reported)
    if dataclasses.is_dataclass(kind):
        word = typing.cast("type", kind)
        return _dataclass(word, lenient=lenient, reported=reported or _is_reported(word))
    if issubclass(kind, enum.Enum):
        return _enum(kind)
    return {float: _float, int: _integer}.get(kind) or _scalar(kind)


def _anything(data: Any) -> Any:
    return data


def _reported_text(data: Any) -> str:
    if not isinstance(data, str):
        raise _Wrong(data, "a value of type str")
    return sanitize.clean_text(data)


def _optional(reader: _Reader) -> _Reader:
    def read(data: Any) -> Any:
        return None if data is None else reader(data)

    return read


def _tuple_of(reader: _Reader) -> _Reader:
    def read(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise _Wrong(data, "a list")
        items = []
        for value in data:
            try:
                items.append(reader(value))
            except _Wrong as wrong:
                raise wrong.under(f"[{len(items)}]") from None
        return tuple(items)

    return read


def _dict_of(reader: _Reader, *, reported: bool) -> _Reader:
    def read(data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise _Wrong(data, "an object")
        items = {}
        for key, value in data.items():
            try:
                items[_key(key, reported=reported)] = reader(value)
            except _Wrong as wrong:
                raise wrong.under(str(key)) from None
        return items

    return read


def _dataclass(kind: type, *, lenient: bool, reported: bool) -> _Reader:
    readers = {name: _reader(hint, lenient, reported) for name, hint in _hints(kind).items()}
    readers |= {name: _within(readers[name], *limits) for name, limits in _limits(kind).items()}
    keeps, owners = _has_sections(kind), sections.flat(kind) if _has_sections(kind) else {}
    required = [name for name, default in _defaults(kind).items() if default is dataclasses.MISSING]

    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise _Wrong(data, f"an object with the fields of {kind.__name__}")
        values, unknown = {}, {}
        for name, value in data.items():
            reader = readers.get(name)
            if reader is None and keeps:
                unknown[_key(name, reported=reported)] = sanitize.clean(value) if reported else value
                continue
            if reader is None and lenient:
                continue
            if reader is None:
                raise _Wrong(value, f"one of {', '.join(readers)}", str(name))
            try:
                values[name] = reader(value)
            except _Wrong as wrong:
                raise wrong.under(name) from None
        for name in required:
            if name not in values:
                raise _Wrong(None, "a value, because this field is required", name)
        return kind(**(_with_sections(values, owners, unknown) if keeps else values))

    return read


def _limits(kind: type) -> Mapping[str, tuple[int, int]]:
    limits: Mapping[str, tuple[int, int]] = getattr(kind, "limits", {})
    return limits


def _within(reader: _Reader, least: int, most: int) -> _Reader:
    def read(data: Any) -> Any:
        value = reader(data)
        size = len(value) if isinstance(value, str) else value
        if size is not None and not least <= size <= most:
            raise _Wrong(
                data, f"a text of at most {most} characters" if size is not value else f"a number from {least} to {most}"
            )
        return value

    return read


def _with_sections(
    values: dict[str, Any], owners: Mapping[str, type[sections.Section]], unknown: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of a record with those of its sections gathered in one."""
    gathered: dict[type[sections.Section], dict[str, Any]] = {}
    for name in values.keys() & owners.keys():
        gathered.setdefault(owners[name], {})[name] = values.pop(name)
    if gathered or unknown:
        values[sections.FIELD] = sections.Sections(*(cls(**fields) for cls, fields in gathered.items()), unknown=unknown)
    return values


def _enum(kind: type[enum.Enum]) -> _Reader:
    allowed = ", ".join(str(member.value) for member in kind)

    def read(data: Any) -> enum.Enum:
        try:
            return kind(data)
        except ValueError:
            raise _Wrong(data, f"one of {allowed}") from None

    return read


def _float(data: Any) -> float:
    kind = type(data)
    if kind is float:
        # One object for every NaN: values that are compared as a whole are then equal to what they were before.
        return data if data == data else math.nan  # noqa: PLR0124  only NaN differs from itself
    # bool is an int to Python but never to a reader of JSON.
    if kind is int:
        try:
            return float(data)
        except OverflowError:
            raise _Wrong(f"an integer of {data.bit_length()} bits", "a number in the range of a 64-bit float") from None
    if kind is str and data in sanitize.NON_FINITE:
        return sanitize.NON_FINITE[data]
    raise _Wrong(data, "a value of type float")


def _integer(data: Any) -> int:
    if type(data) is not int:
        raise _Wrong(data, "a value of type int")
    if not sanitize.INT_MIN <= data <= sanitize.INT_MAX:
        raise _Wrong(f"an integer of {data.bit_length()} bits", "an integer of at most 64 bits")
    return data


def _scalar(kind: type) -> _Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, kind):
            raise _Wrong(data, f"a value of type {kind.__name__}")
        return data

    return read
