"""What would happen next, and when."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Deadline"]


@dataclass(frozen=True, order=True, kw_only=True)
class Deadline:
    """A clock that runs: unless something changes, `then` happens when the job's clock reads `at`.

    Attributes:
        at: seconds on the job's own clock (`JobRecord.clock`).
        clock: its name in the table of clocks (supervision/clocks.py).
        then: what happens, as a person says it ("the job is reset").
    """

    at: float
    clock: str
    then: str
