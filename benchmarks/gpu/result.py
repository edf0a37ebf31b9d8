"""What one check found, as one frozen value that travels as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Result"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One check.

    Attributes:
        name: of the check.
        passed: what it proves holds here.
        sentence: what was found, in one sentence.
        figures: measured values, by name with their unit.
        ratio: to the peer that was measured in the same run (more is better for us), None where there is no peer.
        stand_ins: what stood in for a part of a GPU; empty on a machine with one.
        seconds: that the check took.
    """

    name: str
    passed: bool
    sentence: str
    figures: Mapping[str, float] = field(default_factory=dict, hash=False)
    ratio: float | None = None
    stand_ins: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Return what `to_json` gave."""
        return cls(**{**data, "stand_ins": tuple(data["stand_ins"])})
