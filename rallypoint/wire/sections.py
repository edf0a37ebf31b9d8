"""Sections: the fields that an optional capability adds to a record of the wire.

A record with sections (`Plan`, `AgentReport`, `JobStatus`, `Assignment`, `Continue`) has a small fixed part and one field
`sections`, a mapping by the name of the capability. The schema of a section is a dataclass in the capability's own `wire.py`.

In JSON a section is not nested: its fields stand beside the fixed ones, under the names that they had when they were fixed
fields. So a record reads and writes the same text with or without sections, and neighbouring versions understand each other.
A key that neither the fixed part nor a registered section knows is kept in `Sections.unknown` and written again.

A large record also has groups (`Group`): fixed fields of one concept. Their fields stand beside the others in JSON, too.

The sections of all registered capabilities are loaded on first use, by the names in `rallypoint.capabilities.NAMES`: whoever
reads a record can neither forget them nor has to import them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "FIELD",
    "NO_SECTIONS",
    "Group",
    "Section",
    "Sections",
    "build",
    "flat",
    "groups_of",
    "known_fields",
    "of_record",
    "replaced",
    "value_of",
]

R = TypeVar("R")

#: Name of the field of a record that holds its sections.
FIELD = "sections"


class Group:
    """Fixed fields of one concept in a record. Subclasses are frozen dataclasses whose fields all have defaults."""


@functools.cache
def groups_of(record: Any) -> Mapping[str, type[Group]]:
    """Return the groups of a kind of record by the name of the field that holds each."""
    hints = typing.get_type_hints(record)
    return {f.name: hints[f.name] for f in dataclasses.fields(record) if _is_group(hints[f.name])}


def _is_group(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, Group)


class HasSections(Protocol):
    """A record with sections."""

    @property
    def sections(self) -> Sections:
        """Its sections."""
        ...


class Section:
    """The fields of one capability in one kind of record. Subclasses are frozen dataclasses whose fields all have defaults.

    ```
    @dataclass(frozen=True, kw_only=True)
    class StatusSection(Section, record="JobStatus", capability="tuned_batch"): ...
    ```

    Attributes:
        record: class name of the record.
        capability: name of the capability, which is the name of its folder.
    """

    record: ClassVar[str]
    capability: ClassVar[str]

    def __init_subclass__(cls, *, record: str, capability: str) -> None:
        super().__init_subclass__()
        cls.record, cls.capability = record, capability
        _SECTIONS.setdefault(record, {})[capability] = cls

    @classmethod
    def of(cls, record: HasSections) -> Self:
        """Return this section of a record, with its defaults where the record has none."""
        kind: Any = cls
        found = record.sections.get(cls.capability)
        return found if isinstance(found, cls) else _empty(kind)

    @property
    def bare(self) -> bool:
        """Whether all fields have their defaults."""
        kind: Any = type(self)
        return bool(self == _empty(kind))

    def steady(self) -> Self:
        """Return the section without values that change with each measurement: a change of those alone is not urgent."""
        return self


_SECTIONS: dict[str, dict[str, type[Section]]] = {}


class Sections(Mapping[str, Section]):
    """The sections of one record by capability; immutable. A section that equals its defaults is the same as none.

    `unknown` are the keys of the record's JSON that no registered capability reads.
    """

    __slots__ = ("_known", "unknown")

    def __init__(self, *sections: Section, unknown: Mapping[str, Any] | None = None) -> None:
        self._known = {s.capability: s for s in sections if not s.bare}
        self.unknown: Mapping[str, Any] = unknown or {}

    def __getitem__(self, capability: str) -> Section:
        return self._known[capability]

    def get(self, capability: str, default: Any = None) -> Any:
        """Return a section, or the default; faster than the method of `Mapping`, which raises `KeyError` and catches it."""
        return self._known.get(capability, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sections) and (self._known, self.unknown) == (other._known, other.unknown)

    def __hash__(self) -> int:
        return hash((*self._known, *self.unknown))  # by name alone: values may hold mappings

    def __repr__(self) -> str:
        unknown = f", unknown={self.unknown!r}" if self.unknown else ""
        return f"Sections({', '.join(map(repr, self._known.values()))}{unknown})"

    def having(self, *sections: Section) -> Sections:
        """Return these sections with some added or replaced."""
        return Sections(*{**self._known, **{s.capability: s for s in sections}}.values(), unknown=self.unknown)

    @property
    def bare(self) -> bool:
        """Whether all fields have their defaults."""
        kind: Any = type(self)
        return bool(self == _empty(kind))

    def steady(self) -> Sections:
        """Return the steady part of each section."""
        return Sections(*(section.steady() for section in self._known.values()), unknown=self.unknown)


NO_SECTIONS = Sections()


@functools.cache
def _empty(cls: Any) -> Any:
    return cls()


def of_record(record: type) -> tuple[Any, ...]:
    """Return the classes of the sections that registered capabilities add to a kind of record, in order of registration."""
    names = _load()
    known = _SECTIONS.get(record.__name__, {})
    return tuple(known[name] for name in names if name in known)


@functools.cache
def flat(record: type) -> Mapping[str, type[Section]]:
    """Return the section of each key that a kind of record has beside its fixed fields."""
    fixed = {field.name for field in dataclasses.fields(record)} | _owners(record).keys()
    found: dict[str, type[Section]] = {}
    for section in of_record(record):
        for field in dataclasses.fields(section):
            if field.name in fixed or field.name in found:
                raise ValueError(
                    f"capability {section.capability}: field {field.name} of class {record.__name__} is already used by "
                    "another capability"
                )
            found[field.name] = section
    return found


@functools.cache
def _load() -> tuple[str, ...]:
    """Import the sections of all registered capabilities, and return the names of these in order of registration."""
    package = importlib.import_module("rallypoint.capabilities")
    package.modules("wire")
    names: tuple[str, ...] = package.NAMES
    return names


# --- Records from flat fields ------------------------------------------------------------------------------------------------


def build(record: type[R], **fields: Any) -> R:
    """Return a record from fields by their names in JSON, those of groups and sections included.

    Raises `TypeError` for an unknown field.
    """
    own, groups, sections = _divided(record, fields)
    own |= {name: groups_of(cast("Any", record))[name](**values) for name, values in groups.items()}
    return record(**own, **({FIELD: Sections(*(cls(**values) for cls, values in sections.items()))} if sections else {}))


def replaced(record: R, **fields: Any) -> R:
    """Return a record with other values of fields by their names in JSON, as `dataclasses.replace` does for fixed ones."""
    own, groups, sections = _divided(type(record), fields)
    own |= {name: dataclasses.replace(getattr(record, name), **values) for name, values in groups.items()}
    changed = [dataclasses.replace(cls.of(record), **values) for cls, values in sections.items()]  # type: ignore[type-var,arg-type]
    if changed:
        own[FIELD] = record.sections.having(*changed)  # type: ignore[attr-defined]
    return dataclasses.replace(record, **own)  # type: ignore[type-var]


def value_of(record: HasSections, name: str, otherwise: Any = None) -> Any:
    """Return the value of a field by its name in JSON; `otherwise` where neither the record nor a capability has that field."""
    section, group = flat(type(record)).get(name), _owners(type(record)).get(name)
    part = section.of(record) if section else getattr(record, group) if group else record
    return getattr(part, name, otherwise)


def known_fields(record: type, **fields: Any) -> dict[str, Any]:
    """Return those of the fields, by their names in JSON, that a section of a kind of record has."""
    return {name: value for name, value in fields.items() if name in flat(record)}


@functools.cache
def _owners(record: Any) -> Mapping[str, str]:
    """Return the name of the group's field by the name of each field in a group."""
    return {field.name: group for group, cls in groups_of(record).items() for field in dataclasses.fields(cast("Any", cls))}


def _divided(
    record: type, fields: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[type[Section], dict[str, Any]]]:
    """Return the record's own fields, those of each group and those of each section."""
    of_sections, of_groups = flat(record), _owners(cast("Any", record))
    own: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    sections: dict[type[Section], dict[str, Any]] = {}
    for name, value in fields.items():
        if name in of_sections:
            sections.setdefault(of_sections[name], {})[name] = value
        elif name in of_groups:
            groups.setdefault(of_groups[name], {})[name] = value
        else:
            own[name] = value
    return own, groups, sections
