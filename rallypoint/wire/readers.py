"""Readers of JSON values: one for each type, made once, with the limits of each number, text and collection."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rallypoint.wire import bounds, sanitize, sections
from rallypoint.wire.fields import defaults_of, has_sections, hints_of, is_reported, sections_of

__all__ = ["FieldLimits", "Unexpected", "field_reader", "joined", "key_of", "limits_of", "reader_of"]

_Reader = Callable[[Any], Any]


class Unexpected(Exception):  # noqa: N818  the codec makes a WireError of it
    """What a reader did not expect, and where; whoever is around it puts its own place in front."""

    def __init__(self, value: object, allowed: str, path: str = "") -> None:
        super().__init__(path, allowed)
        self.value, self.allowed, self.path = value, allowed, path

    def under(self, place: str) -> Unexpected:
        """Return this with the place around it in front of its path."""
        return Unexpected(self.value, self.allowed, joined(place, self.path))


def joined(place: str, path: str) -> str:
    """Return the path of a value below a place, as errors spell it."""
    return f"{place}{path}" if not path or path.startswith("[") else f"{place}.{path}".lstrip(".")


_Limits = tuple[int, int]

_ANY_LENGTH = (0, bounds.VALUES)


@functools.cache
def reader_of(
    kind: Any,
    lenient: bool,  # noqa: FBT001  they are keys of the cache
    reported: bool,  # noqa: FBT001
    numbers: _Limits = bounds.COUNT,
    length: _Limits = _ANY_LENGTH,
) -> _Reader:
    """Return the reader of a type; `numbers` limits a whole number, or those in a collection, and `length` its items."""
    if kind is Any:
        return sanitize.clean if reported else _anything
    if kind is str and reported:
        return _reported_text
    origin, arms = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(reader_of(next(arm for arm in arms if arm is not type(None)), lenient, reported, numbers, length))
    if origin is tuple:
        return _tuple_of(reader_of(arms[0], lenient, reported, numbers), length)
    if origin in (dict, Mapping):
        return _dict_of(reader_of(arms[1], lenient, reported, numbers), length, reported=reported)
    if dataclasses.is_dataclass(kind):
        word = typing.cast("type", kind)
        return _dataclass(word, lenient=lenient, reported=reported or is_reported(word))
    if issubclass(kind, enum.Enum):
        return _enum(kind)
    if kind is int:
        return _integer_within(*numbers)
    return _float if kind is float else _scalar(kind)


def _anything(data: Any) -> Any:
    return data


def _reported_text(data: Any) -> str:
    if not isinstance(data, str):
        raise Unexpected(data, "a value of type str")
    return sanitize.clean_text(data)


def _optional(reader: _Reader) -> _Reader:
    def read(data: Any) -> Any:
        return None if data is None else reader(data)

    return read


def _tuple_of(reader: _Reader, length: _Limits) -> _Reader:
    def read(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise Unexpected(data, "a list")
        _check_length(data, length)
        items = []
        for value in data:
            try:
                items.append(reader(value))
            except Unexpected as wrong:
                raise wrong.under(f"[{len(items)}]") from None
        return tuple(items)

    return read


def _check_length(data: Any, length: _Limits) -> None:
    least, most = length
    if not least <= len(data) <= most:
        raise Unexpected(f"a collection of {len(data)}", f"{least} to {most} items")


def _dict_of(reader: _Reader, length: _Limits, *, reported: bool) -> _Reader:
    def read(data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise Unexpected(data, "an object")
        _check_length(data, length)
        items = {}
        for key, value in data.items():
            try:
                items[key_of(key, reported=reported)] = reader(value)
            except Unexpected as wrong:
                raise wrong.under(str(key)) from None
        return items

    return read


def _dataclass(kind: type, *, lenient: bool, reported: bool) -> _Reader:
    readers = {
        name: field_reader(hint, lenient=lenient, reported=reported, limits=limits_of(kind, name))
        for name, hint in hints_of(kind).items()
    }
    keeps = has_sections(kind)
    owners = {name: (cls, defaults_of(kind)[name]) for name, cls in sections.flat(kind).items()} if keeps else {}
    groups = [(name, cls, defaults_of(typing.cast("Any", cls))) for name, cls in sections.groups_of(kind).items()]
    required = [name for name, default in defaults_of(kind).items() if default is dataclasses.MISSING]

    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise Unexpected(data, f"an object with keys such as {', '.join(list(readers)[:3])}")
        values, unknown = {}, {}
        for name, value in data.items():
            reader = readers.get(name)
            if reader is None:
                if keeps:
                    unknown[key_of(name, reported=reported)] = sanitize.clean(value) if reported else value
                elif not lenient:
                    raise Unexpected(value, f"only the keys {', '.join(readers)}", str(name))
                continue
            try:
                values[name] = reader(value)
            except Unexpected as wrong:
                raise wrong.under(name) from None
        for name in required:
            if name not in values:
                raise Unexpected(None, "a value, because this field is required", name)
        _gather_groups(values, groups)
        return kind(**(_with_sections(values, owners, unknown) if keeps else values))

    return read


@dataclasses.dataclass(frozen=True)
class FieldLimits:
    """The limits of a field that its class declares, None where it has only those of every field."""

    own: _Limits | None
    items: _Limits | None


@functools.cache
def limits_of(kind: Any, name: str) -> FieldLimits:
    """Return what a class, or its group or section that has the field, declares of a field."""
    parts = (*sections.groups_of(kind).values(), *sections_of(kind))
    owner = next((part for part in parts if name in defaults_of(part)), kind)
    limits: Mapping[str, _Limits] = getattr(owner, "limits", {})
    return FieldLimits(own=limits.get(name), items=limits.get(f"{name}[]"))


def field_reader(hint: Any, *, lenient: bool, reported: bool, limits: FieldLimits) -> _Reader:
    """Return the reader of a field of a dataclass; raises `Unexpected` for a value that its type or limits do not allow."""
    kind = next((arm for arm in typing.get_args(hint) if arm is not type(None)), hint) if _is_optional(hint) else hint
    if kind is int:
        return reader_of(hint, lenient, reported, limits.own or bounds.COUNT)
    if kind is float and limits.own is not None:
        return _float_within(reader_of(hint, lenient, reported), limits.own)
    if kind is str:
        reader = reader_of(hint, lenient, reported)
        return reader if limits.own is None else _text_within(reader, limits.own)
    return reader_of(hint, lenient, reported, limits.items or bounds.COUNT, limits.own or _ANY_LENGTH)


def _is_optional(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _text_within(reader: _Reader, length: _Limits) -> _Reader:
    def read(data: Any) -> Any:
        value = reader(data)
        if value is not None and len(value) > length[1]:
            raise Unexpected(data, f"a text of at most {length[1]} characters")
        return value

    return read


def _float_within(reader: _Reader, numbers: _Limits) -> _Reader:
    least, most = numbers

    def read(data: Any) -> Any:
        value = reader(data)
        if value is None or least <= value <= most:
            return value
        raise Unexpected(data, f"a number from {least} to {most}")

    return read


def _gather_groups(values: dict[str, Any], groups: Iterable[tuple[str, Any, Collection[str]]]) -> None:
    for group, cls, names in groups:
        values[group] = cls(**{name: values.pop(name) for name in names if name in values})


def _with_sections(
    values: dict[str, Any], owners: Mapping[str, tuple[type[sections.Section], Any]], unknown: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of a record with those of its sections gathered in one; each owner comes with the default of its field.

    A field with its default adds nothing to a section, and most fields of most messages have theirs.
    """
    gathered: dict[type[sections.Section], dict[str, Any]] = {}
    for name, (owner, default) in owners.items():
        if name in values:
            value = values.pop(name)
            if value is not default and value != default:
                gathered.setdefault(owner, {})[name] = value
    if gathered or unknown:
        values[sections.FIELD] = sections.Sections(*(cls(**fields) for cls, fields in gathered.items()), unknown=unknown)
    return values


def _enum(kind: type[enum.Enum]) -> _Reader:
    allowed = ", ".join(str(member.value) for member in kind)

    def read(data: Any) -> enum.Enum:
        try:
            return kind(data)
        except ValueError:
            raise Unexpected(data, f"one of {allowed}") from None

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
            raise Unexpected(f"an integer of {data.bit_length()} bits", "a number in the range of a 64-bit float") from None
    if kind is str and data in sanitize.NON_FINITE:
        return sanitize.NON_FINITE[data]
    raise Unexpected(data, "a value of type float")


def _integer_within(least: int, most: int) -> _Reader:
    def read(data: Any) -> int:
        if type(data) is int and least <= data <= most:
            return data
        if type(data) is not int:
            raise Unexpected(data, "a value of type int")
        if not sanitize.INT_MIN <= data <= sanitize.INT_MAX:
            raise Unexpected(f"an integer of {data.bit_length()} bits", "an integer of at most 64 bits")
        raise Unexpected(data, f"a number from {least} to {most}")

    return read


def _scalar(kind: type) -> _Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, kind):
            raise Unexpected(data, f"a value of type {kind.__name__}")
        return data

    return read


def key_of(key: Any, *, reported: bool) -> str:
    """Return a key of a JSON object; that of a value which a job reports is cleaned."""
    return sanitize.clean_key(str(key)) if reported else str(key)
