"""What the page shows, as plain values: the browser gets them as JSON and draws, and decides nothing. Pure.

All times are seconds since the epoch. Texts are for people and ready to be shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from rallypoint.report.model import Goodput, Mood, State, Timeline
from rallypoint.wire.bounds import PID, WHOLE

__all__ = [
    "PAGE_VERSION",
    "Curve",
    "Fact",
    "Fault",
    "Line",
    "LogPlace",
    "NodeRow",
    "Page",
    "Point",
    "RankCell",
    "RoleInstance",
    "RolePart",
]

PAGE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One figure: `text` large, `note` small."""

    label: str
    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One incident, as it is told: what broke where, what was done about it by which rung, and what it cost.

    `recovered` is how it ended, `training resumed after 4.4 s`, "" while it has not.
    `tail` is the culprit's last lines, `evidence` where each rank of a world stood that hangs.
    """

    limits: ClassVar = {"steps_lost": WHOLE}

    number: int
    at: float
    healed_at: float | None
    recovered: str
    title: str
    cause: str
    mood: Mood
    where: str = ""
    host: str = ""
    node: int = -1
    rank: int = -1
    ended: str = ""
    said: str = ""
    judged: str = ""
    rung: str = ""
    done: str = ""
    steps_lost: int | None = None
    attempt: int = 0
    round: int = 0
    tail: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class RankCell:
    """One worker; `step` None where it reports none. `faults` counts those in which it was the first to break.

    `behind`: steps behind the furthest rank, 0 where that is no more than agents speaking at different moments.
    """

    limits: ClassVar = {"step": WHOLE, "behind": WHOLE, "faults": WHOLE, "pid": PID}

    rank: int
    step: int | None
    behind: int = 0
    pid: int = 0
    faults: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One node of the last world, with its ranks; `faults` are those of the node and of its ranks."""

    limits: ClassVar = {"faults": WHOLE}

    node: int
    host: str
    incarnation: int
    state: str
    mood: Mood
    ranks: tuple[RankCell, ...] = ()
    faults: int = 0


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a curve; `value` None breaks the line."""

    at: float
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Something over time. `stepped`: it keeps its value until the next point."""

    name: str
    unit: str
    points: tuple[Point, ...]
    last: str = ""
    stepped: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the story; `fault` is the number of the incident that it tells of, 0 for none."""

    at: float
    text: str
    fault: int = 0


@dataclass(frozen=True, kw_only=True)
class LogPlace:
    """Where a log is; `rank` -1 is that of the task. `command` prints it at a terminal. `role`: of a job with several."""

    rank: int
    label: str
    path: str = ""
    command: str = ""
    role: str = ""


@dataclass(frozen=True, kw_only=True)
class RoleInstance:
    """One instance of a simple role; `life` counts its processes in this attempt, `restarts` those of its group."""

    index: int
    state: str
    mood: Mood
    group: int
    life: int
    restarts: int


@dataclass(frozen=True, kw_only=True)
class RolePart:
    """One role of a job with several: that of a simple role has `instances`, an elastic one all else that a job has.

    Attributes:
        launch: `elastic` or `simple`; `driver`: the job waits for it.
        state, mood, title: how it is.
    """

    name: str
    launch: str
    driver: bool
    state: State
    mood: Mood
    title: str
    facts: tuple[Fact, ...] = ()
    faults: tuple[Fault, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    curves: tuple[Curve, ...] = ()
    instances: tuple[RoleInstance, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything that is shown of one job.

    Attributes:
        state, mood, title: how it is; `advice` says what to do.
        live: it is worth asking again soon.
        coming: what happens at which moment unless something changes, the next first.
        as_of: of when the newest of this is; 0 where nothing is known.
        kept: it is told from what the task has kept, since the job itself is gone.
        roles: of a job with several.
        notice: why this is not the newest state of the job; "" where it is.
    """

    reported: ClassVar[bool] = True

    version: int = PAGE_VERSION
    state: State
    mood: Mood
    title: str
    advice: str
    live: bool = False
    as_of: float = 0.0
    kept: bool = False
    job: str = ""
    place: str = ""
    facts: tuple[Fact, ...] = ()
    timeline: Timeline | None = None
    faults: tuple[Fault, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    curves: tuple[Curve, ...] = ()
    goodput: Goodput | None = None
    coming: tuple[Line, ...] = ()
    story: tuple[Line, ...] = ()
    logs: tuple[LogPlace, ...] = ()
    details: tuple[Fact, ...] = field(default=())
    notice: str = ""
    roles: tuple[RolePart, ...] = ()
