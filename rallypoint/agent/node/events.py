"""The events and actions of a node agent's state machine (decide.py). Values alone."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire.failover import Failover
from rallypoint.wire.incident import Culprit
from rallypoint.wire.messages import Assignment, Reply

__all__ = [
    "Action",
    "Advised",
    "Announced",
    "Answered",
    "AskExtension",
    "End",
    "Event",
    "Freed",
    "LeaveOverdue",
    "LeaveWorld",
    "StartWorkers",
    "StepFailed",
    "StopWorkers",
    "StoreLost",
    "Told",
    "WorkersEnded",
    "WorkersGone",
]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The coordinator answered."""

    reply: Reply


@dataclass(frozen=True, kw_only=True)
class WorkersEnded:
    """Worker processes ended by themselves: `ranks` are local, `failures` those among them that ended badly."""

    ranks: frozenset[int]
    failures: tuple[Culprit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WorkersGone:
    """No process of the round is left but those of the local ranks that were to be spared."""

    spared: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Announced:
    """A worker of `round` said what it can do: live on, and into a world of another size."""

    round: int
    local_rank: int
    able: bool
    resizable: bool = False


@dataclass(frozen=True, kw_only=True)
class Freed:
    """A worker has left the world of `round` and waits for another."""

    round: int
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class StepFailed:
    """A step of a worker of `round` raised; it lives, and has left its world.

    `replace`: another process takes its place all the same, because it may not run the step again, or has done so in vain.
    """

    round: int
    failure: Culprit
    replace: bool = False


@dataclass(frozen=True, kw_only=True)
class LeaveOverdue:
    """Whoever was told to leave the world of `round` had time enough."""

    round: int


@dataclass(frozen=True, kw_only=True)
class StoreLost:
    """The store of the running round, which was served here, is gone."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Advised:
    """The failover extension answered about a round, or could not (`note`)."""

    round: int
    failover: Failover
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Told:
    """It must end with exit code `code`: a signal, lost contact, a full disk. `leaving` tells the coordinator."""

    code: int
    reason: str
    leaving: bool


Event = Answered | WorkersEnded | WorkersGone | Announced | Freed | StepFailed | LeaveOverdue | StoreLost | Advised | Told


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
