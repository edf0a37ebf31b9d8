"""What is known of the classes of messages: their fields, the types and defaults of these, and what each class declares."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

from rallypoint.wire import sections

__all__ = ["defaults_of", "fixed_fields", "free_fields", "has_sections", "hints_of", "is_message", "is_reported", "sections_of"]


@functools.cache
def is_message(kind: Any) -> bool:
    """Return whether a type is written as a JSON object with the fields of the class."""
    return dataclasses.is_dataclass(kind)


@functools.cache
def is_reported(kind: Any) -> bool:
    """Return whether a class holds what a job reports."""
    return bool(getattr(kind, "reported", False))


@functools.cache
def has_sections(kind: Any) -> bool:
    """Return whether capabilities add fields of their own to a class."""
    return any(field.name == sections.FIELD for field in dataclasses.fields(kind))


@functools.cache
def sections_of(kind: Any) -> tuple[Any, ...]:
    """Return the classes whose fields are written beside those of this class."""
    return sections.of_record(kind) if has_sections(kind) else ()


@functools.cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, those of its sections included."""
    hints = typing.get_type_hints(kind)
    own = {name: hints[name] for name in fixed_fields(kind)}
    return own | {name: hint for section in sections_of(kind) for name, hint in hints_of(section).items()}


@functools.cache
def free_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass that hold any JSON value."""
    return frozenset(name for name, hint in hints_of(kind).items() if hint is Any or Any in typing.get_args(hint))


@functools.cache
def fixed_fields(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass, without those of its sections."""
    return tuple(field.name for field in dataclasses.fields(cls) if field.name != sections.FIELD)


@functools.cache
def defaults_of(cls: Any) -> dict[str, Any]:
    """Return the fields of a dataclass and of its sections with their defaults: a value of its own for one that has none."""
    own = {f.name: _default(f) for f in dataclasses.fields(cls) if f.name != sections.FIELD}
    return own | {name: default for section in sections_of(cls) for name, default in defaults_of(section).items()}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
