"""JSON schema of the wire's dataclasses, as strict as the wire's own reader. Pure."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from typing import Any

from rallypoint.wire import sections
from rallypoint.wire.sanitize import NON_FINITE

__all__ = ["DIALECT", "wire_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS = {str: "string", int: "integer", bool: "boolean", type(None): "null"}

_FLOAT: dict[str, Any] = {
    "description": "A number, or the name of one that JSON does not have.",
    "anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}],
}


def wire_schema(root: type) -> dict[str, Any]:
    """Return the schema of the dataclass `root`; what it is made of stands under `$defs`, by class name."""
    defs: dict[str, Any] = {}
    _schema(root, defs)
    body = defs.pop(root.__name__)
    return {"$schema": DIALECT, "title": root.__name__, **body, "$defs": dict(sorted(defs.items()))}


def _schema(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(arm, defs) for arm in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], defs)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], defs)}
    if kind is float:
        defs["Float"] = _FLOAT
        return {"$ref": "#/$defs/Float"}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    return _named(kind, defs)


def _named(kind: type, defs: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in defs:
        defs[kind.__name__] = {}  # holds the place while a type that contains itself is read
        defs[kind.__name__] = _enumeration(kind) if issubclass(kind, enum.Enum) else _object(kind, defs)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _enumeration(kind: type[enum.Enum]) -> dict[str, Any]:
    return {"description": _description(kind), "enum": [member.value for member in kind]}


def _object(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    own = [field for field in dataclasses.fields(kind) if field.name != sections.FIELD]
    known = sections.of_record(kind) if len(own) < len(dataclasses.fields(kind)) else ()
    hints = {name: hint for one in (kind, *known) for name, hint in typing.get_type_hints(one).items()}
    fields = (*own, *(field for one in known for field in dataclasses.fields(one)))
    return {
        "description": _description(kind),
        "type": "object",
        "properties": {field.name: _schema(hints[field.name], defs) for field in fields},
        "required": [field.name for field in fields if _is_required(field)],
        "additionalProperties": False,
    }


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _description(kind: type) -> str:
    return inspect.getdoc(kind) or kind.__name__
