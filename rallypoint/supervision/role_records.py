"""What the conductor of a job with roles decides from, and what it decides: policies, records, units and actions. Frozen."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.wire.plan import ROLES
from rallypoint.wire.role_plans import UNITS

__all__ = [
    "ConductorPolicy",
    "ConductorRecord",
    "Decision",
    "Level",
    "Outcome",
    "Phase",
    "RolePolicy",
    "RoleRecord",
    "StartUnit",
    "Step",
    "StopUnit",
    "UnitKey",
    "UnitSeen",
    "UnitState",
]


class Level(enum.Enum):
    """What is started again, from the least to the most; `none` is nothing, and ends the job."""

    INSTANCE = "instance"
    ROLE = "role"
    JOB = "job"
    NONE = "none"


class Phase(enum.Enum):
    """Of the job. The last three are final: nothing of the job is left. Nothing of a suspended one is there, either."""

    RUNNING = "running"
    RESETTING = "resetting"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"


class Outcome(enum.Enum):
    """How a job ends that is being stopped."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"


class UnitState(enum.Enum):
    """What is seen of a unit; `lost` ended, or cannot be reached any more."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class RolePolicy:
    """One role.

    Attributes:
        units: number of instances; 1 of an elastic role.
        per_group: units on one node.
        place: name of the group that the role shares its nodes with; "" where it has its own.
        driver: the job waits for it.
        on_failure: where a failure begins to climb.
        grace: seconds from a graceful end to one by force.
    """

    name: str
    elastic: bool = False
    units: int = 1
    per_group: int = 1
    place: str = ""
    driver: bool = True
    on_failure: Level = Level.INSTANCE
    grace: float = 15.0


@dataclass(frozen=True, kw_only=True)
class ConductorPolicy:
    """The roles of a job and its budgets: N restarts are N + 1 attempts."""

    roles: tuple[RolePolicy, ...]
    node_max_restart: int = 10
    role_max_reset: int = 3
    job_max_restart: int = 10
    master_max_restart: int = 10


@dataclass(frozen=True, kw_only=True, order=True)
class UnitKey:
    """Names one life of a unit: it is started at most once."""

    role: str
    attempt: int
    reset: int
    index: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class UnitSeen:
    """A unit as a backend sees it; `present` while anything of it may still run.

    `exit_code` is as of `subprocess`, negative for a signal; None if unknown. `result`: for its job. `final`: why never again.
    `ended_at`: when it ended, by the clock of its machine, in seconds since the epoch; None if unknown.
    """

    key: UnitKey
    state: UnitState
    present: bool
    reason: str = ""
    exit_code: int | None = None
    result: Any = field(default=None, hash=False)
    final: str = ""
    ended_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class RoleRecord:
    """What is wanted of one role in the current attempt.

    Attributes:
        reset: how often it was reset.
        stop_at: while it is being reset, when its units are ended by force; else None.
        incarnations: of each unit, from 1.
        done: units that succeeded.
        restarts: of instances, by group; a node's budget counts those of all roles of its place.
    """

    limits: ClassVar = {"incarnations": (0, UNITS), "done": (0, UNITS), "restarts": (0, UNITS)}

    name: str
    reset: int = 0
    stop_at: float | None = None
    incarnations: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    restarts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One answer to a failure: what was started again, why, and which attempt it belongs to; `lost` had no exit code."""

    level: Level
    role: str
    index: int
    attempt: int
    reason: str
    at: float
    lost: bool = False
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class ConductorRecord:
    """What outlives a conductor.

    Attributes:
        attempt: of the job, from 1; `term` the number of the conductor that manages it, from 1.
        first: the attempt with which the budgets began: a job that is submitted again has fresh ones.
        stop_at: while the job is reset or stopped, when all that is left is ended by force.
        outcome, reason: of a job that is stopping or over.
        history: the last steps.
    """

    limits: ClassVar = {"roles": (0, ROLES), "history": (0, 1024)}

    phase: Phase = Phase.RUNNING
    attempt: int = 1
    term: int = 1
    first: int = 1
    roles: tuple[RoleRecord, ...] = ()
    stop_at: float | None = None
    outcome: Outcome | None = None
    reason: str = ""
    history: tuple[Step, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the job is over and nothing of it is left."""
        return self.phase in {Phase.SUCCEEDED, Phase.FAILED, Phase.DELETED}


@dataclass(frozen=True, kw_only=True, order=True)
class StartUnit:
    """Start a unit, unless this life of it was started before."""

    key: UnitKey


@dataclass(frozen=True, kw_only=True, order=True)
class StopUnit:
    """End a unit: gracefully, or at once if `force`."""

    key: UnitKey
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The record to save, the actions to perform then, and when to decide again if nothing happens."""

    record: ConductorRecord
    actions: tuple[StartUnit | StopUnit, ...] = ()
    wake_at: float | None = None
