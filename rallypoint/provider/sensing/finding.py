"""What a look at a job found: the value that travels from a trigger to its sensor."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.wire import codec

__all__ = ["Finding", "Found"]


class Found(str, enum.Enum):
    """What a look at a job says."""

    WAITING = "waiting"
    MET = "met"
    ERROR = "error"  #: watching failed; the job may well be healthy
    IMPOSSIBLE = "impossible"  #: the job has ended, or is gone: what was waited for cannot come any more


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a look found, in one word, in one sentence, and as values for XCom.

    `wake`: seconds after which the same sight may be judged differently, None where only news can change it.
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
