"""Mask the secrets of a job in what was seen of it (wire/masked.py). Pure.

An agent knows the secrets of its own role only. An error of a call to another role may quote those of the other one, which
the supervisor knows.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from rallypoint.supervision.observation import Observation, Told
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.masked import Masking, masked_json
from rallypoint.wire.sections import Sections
from rallypoint.wire.status import JobStatus

__all__ = ["masked_observation", "masked_record", "masked_status"]

T = TypeVar("T")

#: Fields with what a script or another controller wrote or raised, as text or as lines.
_TEXTS = frozenset(
    {
        "reason",
        "message",
        "error",
        "detail",
        "log_tail",
        "frames",
        "native",
        "collective",
        "controller",
        "flagged",
        "outdated",
        "waits_for",
    }
)

#: Parts of a status or record that are or hold such fields.
_PARTS = ("incidents", "events", "history", "attempts", "verdict", "conditions", "waits_for")


def masked_observation(seen: Observation, mask: Masking) -> Observation:
    """Return an observation whose status, nodes, errors and words of another controller do not show secrets."""
    if mask is str:
        return seen
    status = None if seen.status is None else masked_status(seen.status, mask)
    told = None if seen.told is None else _masked_told(seen.told, mask)
    masked: Observation = _masked(dataclasses.replace(seen, status=None, told=None), mask)
    return dataclasses.replace(masked, status=status, told=told)


def _masked_told(told: Told, mask: Masking) -> Told:
    messages = tuple((kind, mask(said)) for kind, said in told.messages)
    return dataclasses.replace(told, conditions=_masked(told.conditions, mask), messages=messages)


def masked_status(status: JobStatus, mask: Masking) -> JobStatus:
    """Return a status whose incidents, events, verdict and sections do not show secrets."""
    if mask is str:
        return status
    masked = _with_parts(status, mask)
    # What another version of Rallypoint has added may be any text.
    known, unknown = status.sections.values(), masked_json(dict(status.sections.unknown), mask)
    return dataclasses.replace(masked, sections=Sections(*(_masked(section, mask) for section in known), unknown=unknown))


def masked_record(record: JobRecord, mask: Masking) -> JobRecord:
    """Return a record whose incidents, attempts, history, verdict and conditions do not show secrets."""
    return _with_parts(record, mask)


def _with_parts(value: T, mask: Masking) -> T:
    if mask is str:
        return value
    fields = {name: vars(value)[name] for name in _PARTS if name in vars(value)}
    parts = {name: _text(item, mask) if name in _TEXTS else _masked(item, mask) for name, item in fields.items()}
    return dataclasses.replace(value, **parts)  # type: ignore[type-var]


def _masked(value: Any, mask: Masking) -> Any:
    """Return a value with all such fields of its messages masked."""
    if isinstance(value, tuple):
        return tuple(_masked(item, mask) for item in value)
    if not dataclasses.is_dataclass(value):
        return value
    changed = {
        name: _text(item, mask) if name in _TEXTS else _masked(item, mask)
        for name, item in vars(value).items()
        if name in _TEXTS or isinstance(item, tuple) or dataclasses.is_dataclass(item)
    }
    changed = {name: item for name, item in changed.items() if item != vars(value)[name]}
    return dataclasses.replace(value, **changed) if changed else value  # type: ignore[type-var]


def _text(value: Any, mask: Masking) -> Any:
    if isinstance(value, tuple):
        return tuple(map(mask, value))
    return mask(value) if isinstance(value, str) else value
