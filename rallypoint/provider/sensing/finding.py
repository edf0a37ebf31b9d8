"""Result of one evaluation of a condition: the value that a trigger sends to its sensor."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.wire import codec

__all__ = ["Finding", "Found"]


class Found(str, enum.Enum):
    """Result of an evaluation."""

    WAITING = "waiting"
    MET = "met"
    ERROR = "error"  #: the observation failed; the job may be healthy
    IMPOSSIBLE = "impossible"  #: the job has ended or was deleted, so the condition is no longer possible


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of an evaluation: as an enum, as a sentence, and as values for XCom.

    `wake`: seconds after which the result may change without a new observation, None if only a new observation can change it.
    """

    reported: ClassVar[bool] = True

    found: Found
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    wake: float | None = None

    def to_event(self) -> dict[str, Any]:
        """Return the payload of a trigger's event."""
        event: dict[str, Any] = codec.to_json(self)
        return event

    @classmethod
    def from_event(cls, event: Any) -> Finding:
        """Read a payload; raises `WireError`."""
        return codec.from_json(cls, event, path="event")
