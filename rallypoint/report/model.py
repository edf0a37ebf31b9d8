"""The report of a job as frozen values. All times are seconds since the epoch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rallypoint.report.incidents import ListedIncident
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Incident
from rallypoint.wire.status import JobStatus, Progress

__all__ = ["Deadline", "Entry", "Goodput", "Headline", "Loss", "Mood", "Share", "Span", "State", "Story", "Timeline"]


class State(str, enum.Enum):
    """State of a page, in one word; only the browser sets `no-permission`."""

    WAITING = "waiting"  #: submitted, suspended, or its nodes start
    RUNNING = "running"  #: it trains, without faults
    RECOVERING = "recovering"  #: it recovers from a fault
    RECOVERED = "recovered"  #: it recovered from faults, and trains or has succeeded
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NO_DATA = "no-data"  #: the job does not exist, or cannot be reached


class Mood(str, enum.Enum):
    """Colour of a displayed value; a word always repeats its meaning."""

    GOOD = "good"
    BUSY = "busy"
    BAD = "bad"
    QUIET = "quiet"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The title of a page. `live`: the page changes by itself."""

    state: State
    mood: Mood
    title: str
    advice: str
    live: bool = False


@dataclass(frozen=True, kw_only=True)
class Span:
    """A period of time; `end` is None while it lasts. `kind` selects a colour, `label` is its text."""

    kind: str
    label: str
    start: float
    end: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Lanes over one time axis, `start` to `end`; `work` covers the whole time without gaps."""

    start: float
    end: float
    phases: tuple[Span, ...] = ()
    attempts: tuple[Span, ...] = ()
    rounds: tuple[Span, ...] = ()
    work: tuple[Span, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of the time, by use."""

    kind: str
    label: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Training time of `total` seconds, and the lost time by cause, the largest first."""

    trained: float
    total: float
    lost: tuple[Share, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of the timeline; `incident` is the number of its incident, 0 if there is none."""

    at: float
    text: str
    more: tuple[str, ...] = ()
    incident: int = 0


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A running clock: it expires at `at` (seconds since the epoch), `within` seconds from now, with the effect `then`.

    `setting` is the field of the job that sets it.
    """

    at: float
    within: float
    clock: str
    then: str
    setting: str


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Cost of the faults.

    Attributes:
        faults: incidents that are faults; `healed`: those after which training resumed.
        free: incidents that are not charged to a budget.
        restarts: incidents that restarted workers, over all attempts.
        steps: steps that were repeated.
        seconds: time from a fault, or the end of an attempt, until all ranks trained.
        resets, resets_left: of the whole job; None if the limit is unknown.
    """

    faults: int
    free: int
    healed: int
    restarts: int
    steps: int
    seconds: float
    resets: int
    resets_left: int | None


@dataclass(frozen=True, kw_only=True)
class Story:
    """All displayed data of a job; each output renders a part of it and counts nothing itself.

    Attributes:
        record: of the supervisor.
        status: the coordinator's last status, if it is of the current attempt.
        progress: the newest known progress.
        headline: state, title and advice; `standing` is one line with phase, attempt, retries and step.
        silence: `last report 12 s ago`, "" while reports arrive.
        conditions: the conditions that explain the phase, a line each.
        incidents: every incident, folded ones as counts first; `details` are those that are not folded, numbered from 1.
        restarts: the worker restarts of this attempt that are charged to its budget.
        loss: how many incidents, and what they have cost.
        entries: the events, oldest first.
        timeline: phases, attempts, rounds, and the use of the time; `goodput` is its sum.
        pending: the phase change of the next supervisor turn, or "".
        deadlines: running clocks, the next first; `waits`: what the job waits for if no clock runs.
    """

    record: JobRecord
    status: JobStatus | None
    progress: Progress
    headline: Headline
    standing: str
    silence: str
    conditions: tuple[str, ...]
    incidents: tuple[ListedIncident, ...]
    details: tuple[Incident, ...]
    restarts: tuple[Incident, ...]
    loss: Loss
    entries: tuple[Entry, ...]
    timeline: Timeline
    goodput: Goodput
    pending: str
    deadlines: tuple[Deadline, ...]
    waits: str
