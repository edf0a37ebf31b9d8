"""What a scenario is: when, what is done, and what must be so afterwards. Values alone; the driver performs them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["KILLS", "Deed", "Fate", "Mode", "Moment", "Scenario"]


class Mode(str, enum.Enum):
    """Where the task waits for its job; the name of the DAG, too."""

    SYNC = "sync"
    DEFERRED = "deferred"


class Moment(str, enum.Enum):
    """Points of a job's life, in their order, and states of its task."""

    QUEUED = "queued"  #: the executor has the task, and no worker has begun it
    BEFORE_SUBMISSION = "before-submission"
    INTENT_WRITTEN = "intent-written"
    SUBMITTED = "submitted"
    ROUND_FORMING = "round-forming"
    RUNNING_SYNC = "running-sync"
    DEFERRING = "deferring"
    DEFERRED = "deferred"
    TRIGGERER_DOWN = "triggerer-down"  #: deferred, and no triggerer runs
    RESUMING = "resuming"
    FINISHING = "finishing"
    COLLECTED = "collected"

    @property
    def is_gate(self) -> bool:
        """Whether the task itself stops there."""
        return self in _GATES

    @property
    def trained(self) -> bool:
        """Whether the training is over by then."""
        return self in (Moment.RESUMING, Moment.FINISHING, Moment.COLLECTED)


_GATES = frozenset(
    {
        Moment.BEFORE_SUBMISSION,
        Moment.INTENT_WRITTEN,
        Moment.SUBMITTED,
        Moment.DEFERRING,
        Moment.RESUMING,
        Moment.FINISHING,
        Moment.COLLECTED,
    }
)


class Deed(str, enum.Enum):
    """What is done at the moment."""

    KILL_WORKER = "kill -9 worker"  #: the task's process, or the whole executor where there is none
    KILL_MACHINE = "kill -9 worker and its supervisor"  #: Airflow misses its heartbeat only
    KILL_TRIGGERER = "kill -9 triggerer"  #: the one that has the trigger; the other takes over
    KILL_TRIGGERERS = "kill -9 both triggerers"
    STALL_TRIGGERER = "stall triggerer"  #: SIGSTOP until the other has the trigger, then SIGCONT
    KILL_SCHEDULER = "kill -9 scheduler"
    CLEAR = "clear"
    MARK_FAILED = "mark failed"
    MARK_SUCCESS = "mark success"
    DELETE_RUN = "delete DAG run"  #: mark the run as failed, as Airflow demands of one that runs, and delete it at once
    PAUSE = "pause"  #: until the job has ended


KILLS = (Deed.KILL_WORKER, Deed.KILL_TRIGGERER, Deed.KILL_SCHEDULER)


class Fate(str, enum.Enum):
    """What becomes of the job."""

    SUCCEEDS = "succeeds"  #: trains to its end, and its result is taken
    DELETED = "deleted"  #: by the task's own doing, within seconds
    LEASE = "ends when its lease expires"  #: nobody could tell it
    ENDED = "ended"  #: one of the last two
    NEVER = "not submitted"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One DAG run with one task and what happens to it.

    Attributes:
        mode: where the task waits.
        at: when `deed` is done.
        task: the task's state in the end; None when it is gone.
        fate: what becomes of the job.
        lease: seconds for which the job goes on without a supervisor.
        trainings: how often the training may have begun, one after the other; never two at a time.
        then: what is done `then_after` seconds later, in a random one.
    """

    mode: Mode
    at: Moment
    deed: Deed
    task: str | None = "success"
    fate: Fate = Fate.SUCCEEDS
    lease: float = 600.0
    trainings: int = 1
    then: Deed | None = None
    then_after: float = 0.0

    @property
    def name(self) -> str:
        """What it is called."""
        further = f", then {self.then.value} after {self.then_after:.1f} s" if self.then else ""
        return f"{self.deed.value} at {self.at.value}{further}"

    @property
    def expected(self) -> str:
        """What must be so, in words."""
        return words(self.task, self.fate.value, self.trainings if self.fate is Fate.SUCCEEDS else None)


def words(task: str | None, fate: str, trainings: int | None) -> str:
    """Return what is expected, or was seen, as a phrase."""
    times = "" if trainings is None else f", trained {'once' if trainings == 1 else f'{trainings} times'}"
    return f"task {task or 'gone'}, job {fate}{times}"
