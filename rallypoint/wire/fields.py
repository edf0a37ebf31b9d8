"""What is known of the classes of messages: their fields, the types and defaults of these, and what each class declares."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable
from typing import Any

from rallypoint.wire import sections

__all__ = [
    "defaults_of",
    "fixed_fields",
    "free_fields",
    "has_sections",
    "hints_of",
    "is_message",
    "is_reported",
    "sections_of",
    "values_of",
]


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
    """Return the types of the fields of a dataclass, those of its groups and sections included."""
    hints = typing.get_type_hints(kind)
    parts = (*sections.groups_of(kind).values(), *sections_of(kind))
    return {name: hints[name] for name in fixed_fields(kind)} | _merged(hints_of(part) for part in parts)


@functools.cache
def free_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass that hold any JSON value."""
    return frozenset(name for name, hint in hints_of(kind).items() if hint is Any or Any in typing.get_args(hint))


@functools.cache
def fixed_fields(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass, without those of its groups and sections."""
    others = {sections.FIELD, *sections.groups_of(cls)}
    return tuple(field.name for field in dataclasses.fields(cls) if field.name not in others)


@functools.cache
def defaults_of(cls: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, of its groups and sections with their defaults: `MISSING` for one that has none."""
    defaults = {field.name: _default(field) for field in dataclasses.fields(cls)}
    parts = (*sections.groups_of(cls).values(), *sections_of(cls))
    return {name: defaults[name] for name in fixed_fields(cls)} | _merged(defaults_of(part) for part in parts)


def values_of(value: Any, kind: Any) -> list[tuple[str, Any]]:
    """Return each field of a dataclass with its value: its own ones, and those of its groups and sections."""
    own, groups, others = _layout(kind)
    items = [(name, getattr(value, name)) for name in own]
    for group, names in groups:
        part = getattr(value, group)
        items += [(name, getattr(part, name)) for name in names]
    for section, names in others:
        part = section.of(value)
        items += [(name, getattr(part, name)) for name in names]
    return items


_Names = tuple[str, ...]


@functools.cache
def _layout(kind: Any) -> tuple[_Names, tuple[tuple[str, _Names], ...], tuple[tuple[Any, _Names], ...]]:
    """Return the names of the fixed fields of a dataclass, and of those of each group and each section."""
    groups = tuple((name, fixed_fields(typing.cast("Any", cls))) for name, cls in sections.groups_of(kind).items())
    return fixed_fields(kind), groups, tuple((section, fixed_fields(section)) for section in sections_of(kind))


def _merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
