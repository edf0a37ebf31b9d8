"""The page as plain values: the browser gets them as JSON and only draws them. Pure.

All times are seconds since the epoch. Texts are complete and ready to be shown.
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
    """One figure: `text` in large letters, `note` in small letters."""

    label: str
    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One incident: the fault, the action and the cost.

    `recovered`: how it ended, `training resumed after 4.4 s`, "" while it has not.
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
    """One worker; `step` is None if it reports none. `faults` counts the faults in which it failed first.

    `behind`: steps behind the furthest rank, 0 if the difference can come from the time of the reports.
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

    limits: ClassVar = {"incarnation": WHOLE, "faults": WHOLE}

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
    """A value over time. `stepped`: it keeps its value until the next point."""

    name: str
    unit: str
    points: tuple[Point, ...]
    last: str = ""
    stepped: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """One entry of the timeline; `fault` is the number of its incident, 0 for none."""

    at: float
    text: str
    fault: int = 0


@dataclass(frozen=True, kw_only=True)
class LogPlace:
    """A log; `rank` -1 is the log of the task. `command` prints it on a terminal. `role`: in a job with several roles."""

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
    """All displayed data of one job.

    Attributes:
        state, mood, title: how it is; `advice` says what to do.
        live: the browser reloads it.
        coming: running clocks and their effects, the next first.
        as_of: time of the newest data; 0 if unknown.
        kept: the data was published by the task, because the job no longer exists.
        roles: of a job with several.
        notice: why this is not the newest state of the job; else "".
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
