"""What the coordinator says is true inside a job."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.wire.bounds import PID, TIME, WHOLE
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit, Folded, Incident
from rallypoint.wire.missing import Missing
from rallypoint.wire.node_range import MAX_NODES, MAX_WORKERS
from rallypoint.wire.sections import NO_SECTIONS, Sections

__all__ = [
    "NODE_LOST",
    "STATUS_VERSION",
    "STATUS_WRITTEN",
    "Event",
    "JobState",
    "JobStatus",
    "Member",
    "Outcome",
    "Progress",
    "RankStatus",
    "Sample",
    "Verdict",
]

#: Annotation of a ConfigMap that holds a status: when that was written, by the API server's clock.
STATUS_WRITTEN = "rallypoint.dev/written"

STATUS_VERSION = 2

#: Reason of the verdict of an attempt that cannot go on without a node that it lost.
NODE_LOST = "NodeLost"


class JobState(str, enum.Enum):
    """Where the attempt stands, seen from inside."""

    FORMING = "forming"  #: waiting for enough nodes to close a round
    RUNNING = "running"  #: a round is closed and its world trains
    SUCCEEDED = "succeeded"  #: every worker of the last world ended with 0
    FAILED = "failed"  #: a budget is spent or a time-out is over; `verdict` says which


class Outcome(str, enum.Enum):
    """How an attempt or a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How it ended, in one word for programs and one sentence for people.

    From inside `reason` is one of `Completed`, `WorkersFailed`, `RendezvousTimeout`, `NodeCheckFailed`, `PreCheckFailed`,
    `TerminalExitCode`, `FailNow`, `GlobalFailover` and `Orphaned`; a supervisor gives the reason of the condition that ended
    the job.
    """

    outcome: Outcome
    reason: str
    message: str
    culprit: Culprit | None = None


@dataclass(frozen=True, kw_only=True)
class Member:
    """A node that takes part in a round, or waits for one.

    `first_rank` .. `first_rank + local_world_size - 1` are its ranks; -1 while it waits.
    """

    limits: ClassVar = {"incarnation": WHOLE, "local_world_size": (0, MAX_WORKERS), "first_rank": (-1, MAX_NODES * MAX_WORKERS)}

    node: int
    incarnation: int
    agent: str
    host: str
    local_world_size: int
    group_rank: int = -1
    first_rank: int = -1
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """One worker: `step` is what the script reported, None when it reports nothing."""

    limits: ClassVar = {"pid": PID, "step": WHOLE}

    rank: int
    node: int
    local_rank: int
    pid: int
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What rank 0 (or the lowest rank that reports) said last.

    `resumed_from` is the step that this round started from; `checkpoint` the path of the last complete checkpoint, and
    `checkpoint_at` when the coordinator heard of it first, 0 before any (version 2).
    """

    limits: ClassVar = {"step": WHOLE, "resumed_from": WHOLE, "at": TIME, "checkpoint_at": TIME}

    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict, hash=False)
    checkpoint: str = ""
    resumed_from: int | None = None
    at: float = 0.0
    checkpoint_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A moment of the training, for curves: a step that was reported, or with `step` None the beginning of a round.

    `at`: seconds since the epoch, coordinator's clock. `world_size` is that of the round; of the metrics a few are kept.
    """

    limits: ClassVar = {"step": WHOLE, "at": TIME}

    at: float
    round: int
    world_size: int
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of the job's story. `at`: seconds since the epoch, coordinator's clock."""

    limits: ClassVar = {"at": TIME}

    at: float
    kind: str
    detail: str
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """Everything the coordinator knows, published on each change (progress is coalesced).

    `world` is that of the last closed round, `waiting` who wants a place in the next; `store` is the round's `host:port`.
    `folded` counts the oldest incidents of the attempt, which are told no more. `durable`: what is told here is written where
    a coordinator of a higher term finds it; where it is not, no second one may start before the first is known to be dead.
    `result` is what rank 0 left as the job's result, once it has succeeded (wire/result.py).
    `samples`: the whole attempt in at most 96 of them, the oldest first (version 2).
    `phases`: how many ranks of the running round are in which phase (wire/pulse.py), of those that tell one (version 2).
    `lost`: how many seconds it took to heal those incidents that are counts by now, by cause (version 2).
    `missing`: nodes that are wanted and not there, at most 64 of them, and `missing_count` how many there are (version 2).
    `tolerance`: why another controller handles the faults of processes; "" if it does not (version 2).
    `training_port`: the first of the ports that are free on all nodes, 0 where none were asked for or found (version 2).
    `sections`: what optional capabilities publish (wire/sections.py).
    """

    neighbours: ClassVar[bool] = True
    reported: ClassVar[bool] = True

    #: Rallypoint writes at most 128 KiB of incidents and events, and 96 samples.
    limits: ClassVar = {
        "world": (0, MAX_NODES),
        "waiting": (0, MAX_NODES),
        "incidents": (0, 4096),
        "folded": (0, 4096),
        "events": (0, 8192),
        "samples": (0, 1024),
        "phases": (0, 256),
        "lost": (0, 256),
        "updated_at": TIME,
    }

    version: int = STATUS_VERSION
    job: str
    uid: str
    fence: Fence
    state: JobState
    world: tuple[Member, ...] = ()
    waiting: tuple[Member, ...] = ()
    store: str = ""
    ranks: tuple[RankStatus, ...] = ()
    progress: Progress = Progress()
    incidents: tuple[Incident, ...] = ()
    folded: tuple[Folded, ...] = ()
    events: tuple[Event, ...] = ()
    samples: tuple[Sample, ...] = ()
    verdict: Verdict | None = None
    updated_at: float = 0.0
    durable: bool = True
    result: Any = field(default=None, hash=False)
    phases: dict[str, int] = field(default_factory=dict, hash=False)
    tolerance: str = ""
    lost: dict[str, float] = field(default_factory=dict, hash=False)
    missing: tuple[Missing, ...] = ()
    missing_count: int = 0
    training_port: int = 0
    sections: Sections = NO_SECTIONS

    @property
    def world_size(self) -> int:
        """Number of ranks of the current world; 0 before the first round."""
        return sum(member.local_world_size for member in self.world)
