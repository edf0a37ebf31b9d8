"""Frozen dataclasses to JSON and back, with errors that name the place.

One reader serves every word of the wire. It is strict: a missing, unknown or mistyped field is a :class:`WireError` that
names the path, the value and what is allowed, because a message that is half understood is worse than one refused.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from rallypoint.wire.errors import RallypointError

__all__ = ["WireError", "dumps", "dumps_item", "dumps_lines", "from_json", "loads", "to_json"]

T = TypeVar("T")

#: Half a pair: what Python makes of bytes in a file name that are no UTF-8. No encoding can hold it.
_SURROGATE = re.compile("[\ud800-\udfff]")


class WireError(RallypointError, ValueError):
    """A JSON value does not have the shape that the wire promises."""

    def __init__(self, path: str, value: object, allowed: str) -> None:
        super().__init__(f"{path or 'value'}: {value!r} is not allowed; expected {allowed}")
        self.path, self.value, self.allowed = path, value, allowed


def to_json(value: Any) -> Any:
    """Return `value` as plain JSON types; tuples become lists, enums their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _defaults(type(value))}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def from_json(cls: type[T], data: Any, *, path: str = "") -> T:
    """Read `data` (as `json.loads` returns it) as a `cls`; raises `WireError`."""
    return typing.cast("T", _read(cls, data, path))


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return the JSON text of a wire value.

    It can always be encoded: a lone surrogate in a text is written as the six characters of its escape, and read back as those.
    """
    return _SURROGATE.sub(_spelled, json.dumps(to_json(value), indent=indent, ensure_ascii=False))


def dumps_lines(value: Any) -> str:
    """Return the JSON text of a wire value with a line for each of its fields and for each item of a list.

    Inside of the items, what equals its default is left out: the reader puts it there again.
    """
    lines = []
    for name in _defaults(type(value)):
        field = getattr(value, name)
        if isinstance(field, tuple) and field:
            text = "[\n  " + ",\n  ".join(map(dumps_item, field)) + "\n ]"
        else:
            text = dumps_item(field)
        lines.append(f' "{name}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}"


def dumps_item(value: Any) -> str:
    """Return the JSON text of a wire value as `dumps_lines` writes it inside of another: one line, without defaults."""
    return _SURROGATE.sub(_spelled, json.dumps(_slim(value), ensure_ascii=False))


def _slim(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((name, getattr(value, name), default) for name, default in _defaults(type(value)).items())
        # Of another type it is no default: 0 and False are equal, but not the same word.
        return {name: _slim(item) for name, item, default in fields if item != default or type(item) is not type(default)}
    return [_slim(item) for item in value] if isinstance(value, tuple) else to_json(value)


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    """Return the fields of a dataclass, each with its default: a value of its own for one that has none."""
    return {f.name: _default(f) for f in dataclasses.fields(cls)}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _spelled(found: re.Match[str]) -> str:
    # Two backslashes: JSON's own escape would bring the surrogate back at the reader, who cannot print it either.
    return f"\\\\u{ord(found[0]):04x}"


def loads(cls: type[T], text: str | bytes) -> T:
    """Read JSON text as a `cls`; raises `WireError` for bad JSON too."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise WireError("", str(text[:80]), f"JSON text ({error})") from error
    return from_json(cls, data)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read(kind: Any, data: Any, path: str) -> Any:
    if kind is Any:
        return data
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(kind, data, path)
    if origin is tuple:
        return _read_tuple(kind, data, path)
    if origin in (dict, Mapping):
        return _read_dict(kind, data, path)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(typing.cast("type", kind), data, path)
    if issubclass(kind, enum.Enum):
        return _read_enum(kind, data, path)
    return _read_scalar(kind, data, path)


def _read_optional(kind: Any, data: Any, path: str) -> Any:
    arms = [arm for arm in typing.get_args(kind) if arm is not type(None)]
    return None if data is None else _read(arms[0], data, path)


def _read_tuple(kind: Any, data: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise WireError(path, data, "a list")
    item = typing.get_args(kind)[0]
    return tuple(_read(item, value, f"{path}[{i}]") for i, value in enumerate(data))


def _read_dict(kind: Any, data: Any, path: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise WireError(path, data, "an object")
    item = typing.get_args(kind)[1]
    return {str(key): _read(item, value, f"{path}.{key}".lstrip(".")) for key, value in data.items()}


def _read_dataclass(kind: type, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise WireError(path, data, f"an object with the fields of {kind.__name__}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            raise WireError(f"{path}.{key}".lstrip("."), data[key], f"one of {', '.join(fields)}")
    values = {}
    for name, field in fields.items():
        where = f"{path}.{name}".lstrip(".")
        if name in data:
            values[name] = _read(_hints(kind)[name], data[name], where)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise WireError(where, None, "a value (the field is missing)")
    return kind(**values)


def _read_enum(kind: type[enum.Enum], data: Any, path: str) -> enum.Enum:
    try:
        return kind(data)
    except ValueError as error:
        allowed = ", ".join(str(member.value) for member in kind)
        raise WireError(path, data, f"one of {allowed}") from error


def _read_scalar(kind: type, data: Any, path: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    # bool is an int to Python but never to a reader of JSON.
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise WireError(path, data, f"a value of type {kind.__name__}")
    return data
