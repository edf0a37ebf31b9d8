"""The story of a job as values: what every output shows of it. All times are seconds since the epoch."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rallypoint.report.incidents import ListedIncident
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Incident
from rallypoint.wire.status import JobStatus, Progress

__all__ = ["Deadline", "Entry", "Goodput", "Headline", "Loss", "Mood", "Share", "Span", "State", "Story", "Timeline"]


class State(str, enum.Enum):
    """What the page is about, in one word; `no-permission` is known to the browser alone, which is told nothing else then."""

    WAITING = "waiting"  #: submitted, suspended, or its nodes start
    RUNNING = "running"  #: it trains, and nothing has happened to it
    RECOVERING = "recovering"  #: something broke, and is being mended
    RECOVERED = "recovered"  #: something broke, and it trains again or has succeeded
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NO_DATA = "no-data"  #: there is no job, or no longer, or it cannot be reached


class Mood(str, enum.Enum):
    """In which colour something is shown; a word always says the same."""

    GOOD = "good"
    BUSY = "busy"
    BAD = "bad"
    QUIET = "quiet"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The first thing that is read. `live`: what is told here will change by itself."""

    state: State
    mood: Mood
    title: str
    advice: str
    live: bool = False


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that lasted; `end` is None while it lasts. `kind` chooses a colour, `label` stands on it."""

    kind: str
    label: str
    start: float
    end: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Lanes over one time axis, `start` to `end`; `work` says what every moment went to, without gaps."""

    start: float
    end: float
    phases: tuple[Span, ...] = ()
    attempts: tuple[Span, ...] = ()
    rounds: tuple[Span, ...] = ()
    work: tuple[Span, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Share:
    """What some of the time went to."""

    kind: str
    label: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """How much of `total` seconds was spent on steps that count; the rest by cause, the largest first."""

    trained: float
    total: float
    lost: tuple[Share, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the story, at seconds since the epoch; `incident` is its number, 0 for what is no incident."""

    at: float
    text: str
    more: tuple[str, ...] = ()
    incident: int = 0


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A clock that runs: at `at` (seconds since the epoch), `within` seconds from now, `then` happens unless something changes.

    `setting` is the field of the job that sets it.
    """

    at: float
    within: float
    clock: str
    then: str
    setting: str


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What the faults have cost.

    Attributes:
        faults: incidents in which something broke, `healed` those of them after which the job trained again.
        free: incidents that no budget pays for.
        restarts: incidents that restarted workers, over all attempts.
        steps: steps that had to be trained again.
        seconds: between a fault, or the end of an attempt, and the moment when everything trained again.
        resets, resets_left: of the whole job; None where the limit is not known.
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
    """Everything that is shown of a job; each output renders a part of it and counts nothing itself.

    Attributes:
        record: the supervisor's memory.
        status: the coordinator's last status, where it is of the current attempt.
        progress: the newest known progress.
        headline: state, title and advice; `standing` is one line with phase, attempt, retries and step.
        silence: `last report 12 s ago`, "" while reports arrive.
        conditions: the conditions that explain the phase, a line each.
        incidents: every incident, folded ones as counts first; `details` are those that are not folded, numbered from 1.
        restarts: the worker restarts of this attempt that its budget has paid for.
        loss: how many incidents, and what they have cost.
        entries: the events, the oldest first.
        timeline: phases, attempts, rounds, and what each moment went to; `goodput` is the sum of the latter.
        pending: the phase change of the next supervisor turn, "" where it changes none.
        deadlines: running clocks, the next first; `waits` says what the job waits for where none runs.
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
