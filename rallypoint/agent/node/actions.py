"""What a node agent is to do: the words that come out of its state machine (decide.py). Values alone."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire.incident import Culprit
from rallypoint.wire.messages import Assignment

__all__ = [
    "Action",
    "AskExtension",
    "End",
    "LeaveWorld",
    "StartWorkers",
    "StopWorkers",
]


@dataclass(frozen=True, kw_only=True)
class StartWorkers:
    """Give those that were kept their places in a round, and start its other workers."""

    assignment: Assignment
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class StopWorkers:
    """Stop what is left of the workers but `spare`; `WorkersGone` follows, at once where nothing is left.

    `at_once`: without the grace in which they may end by themselves.
    """

    spare: frozenset[int] = frozenset()
    at_once: bool = False


@dataclass(frozen=True, kw_only=True)
class LeaveWorld:
    """Tell workers to leave the world of a round: `Freed` follows from each, and `LeaveOverdue` after the deadline."""

    round: int
    ranks: frozenset[int]
    reason: str


@dataclass(frozen=True, kw_only=True)
class AskExtension:
    """Ask the failover extension about the failures of a round; `Advised` follows."""

    round: int
    failures: tuple[Culprit, ...]


@dataclass(frozen=True, kw_only=True)
class End:
    """The agent ends with `code`."""

    code: int


Action = StartWorkers | StopWorkers | LeaveWorld | AskExtension | End
