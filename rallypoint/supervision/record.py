"""What a supervisor remembers of a job: frozen, whole, and enough for any other supervisor to go on from."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.supervision.budget import Course
from rallypoint.supervision.role_records import ConductorRecord
from rallypoint.supervision.trimming import HISTORY_LIMIT
from rallypoint.wire import codec
from rallypoint.wire.bounds import PID, WHOLE
from rallypoint.wire.incident import Folded, Incident
from rallypoint.wire.node_range import MAX_NODES, Size
from rallypoint.wire.status import Event, Progress, Verdict
from rallypoint.wire.wish import Wish

__all__ = [
    "RECORD_VERSION",
    "Advice",
    "Attempt",
    "Condition",
    "ConditionType",
    "Folded",
    "Holder",
    "JobRecord",
    "Phase",
    "Slot",
    "Timer",
]

RECORD_VERSION = 1

_NO_COURSE = Course()


class Phase(str, enum.Enum):
    """Where a job stands, in AppWrapper's words."""

    EMPTY = ""  #: just submitted
    SUSPENDED = "Suspended"  #: it waits for quota, or for somebody to resume it; nothing exists
    RESUMING = "Resuming"  #: the attempt's nodes are being created
    RUNNING = "Running"  #: they all exist; it may be warming up, training, or degraded
    RESETTING = "Resetting"  #: the attempt failed; everything is deleted before the next
    SUSPENDING = "Suspending"  #: somebody suspended it; everything is deleted
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TERMINATING = "Terminating"  #: somebody deleted the job


class ConditionType(str, enum.Enum):
    """The conditions beside the phase, in AppWrapper's words."""

    QUOTA_RESERVED = "QuotaReserved"
    RESOURCES_DEPLOYED = "ResourcesDeployed"
    PODS_READY = "PodsReady"
    UNHEALTHY = "Unhealthy"
    DELETING_RESOURCES = "DeletingResources"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition and since when it has its value.

    `at` is wall time for people; `clock` is the job's own clock, which every deadline is counted from.
    """

    type: ConditionType
    value: bool
    reason: str
    at: float
    clock: float


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One node of the current attempt: which incarnation should be there.

    Clocks are the job's own.

    Attributes:
        seen: it was seen to exist; one that is not there any more was deleted from outside, and is never created again.
        pending_clock: since when it exists without running, None when it does not wait or waits for quota.
        lost_clock: when that incarnation was seen ended, None while it is wanted.
        wanted_clock: since when this incarnation is wanted in the place of one that may still run; None for the first.
        unseen: the latest incarnation whose end was not observed, so it may still run; 0 if there is none.
        group: group of machines on which the slot's node ran last; "" is none, or not known.
    """

    node: int
    incarnation: int = 1
    seen: bool = False
    pending_clock: float | None = None
    lost_clock: float | None = None
    wanted_clock: float | None = None
    unseen: int = 0
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Timer:
    """A clock that can be paused: it has run for `spent` seconds, and since `since` on the job's clock (None: it is paused).

    `mark` is the step that was the newest when it was started, for clocks that ask for progress.
    """

    limits: ClassVar = {"mark": WHOLE}

    name: str
    spent: float = 0.0
    since: float | None = None
    mark: int | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt of the job. Times are seconds since the epoch: `ready_at` of its first readiness, `ended_at` of its end."""

    number: int
    owner: str
    started_at: float
    ready_at: float | None = None
    ended_at: float | None = None
    reason: str = ""
    message: str = ""
    progress: Progress = Progress()


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that supervises the job.

    Attributes:
        id: unlike any other process's; "", and no heartbeat, once it has let the job go while its heart may go on for others.
        name: for people (`rallypoint supervise`, a task instance's key); `host` and `pid` say where it runs.
        heartbeat: where its heartbeat is read, in the backend's words (a file, a Lease); a counter that changes while it lives.
        since: seconds since the epoch.
    """

    limits: ClassVar = {"pid": PID}

    id: str
    name: str
    host: str = ""
    pid: int = 0
    heartbeat: str = ""
    since: float = 0.0

    def describe(self) -> str:
        """Return the supervisor's name and place: `rallypoint supervise (process 12 on ada)`."""
        where = " on ".join(part for part in (f"process {self.pid}" if self.pid else "", self.host) if part)
        return f"{self.name} ({where})" if where else self.name


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What the next submission of a job that failed is to do otherwise, as was decided when its result was taken.

    Attributes:
        memory_factor: how many times the memory that the job asks for, no more than `memory_limit` (a quantity).
        ignore_hosts: machines that it does not go to.
    """

    memory_factor: float = 1.0
    memory_limit: str = ""
    ignore_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The memory of one job.

    Attributes:
        version: of this form.
        name, uid: of the job; a job of the same name that was submitted after a deletion has another uid.
        digest: of the spec that runs.
        owner: who may cancel it (`cli`, or an Airflow task instance's id).
        claimant: who submitted it, the same over all tries (an Airflow task instance by its names); "" where that is not known.
        deletion: somebody asked for the job to be deleted.
        size: somebody asked for other bounds of the world than the plan's; None are those.
        wish: the last that somebody asked of all its workers; None while nobody has.
        suspend: somebody asked for it to be suspended; it is resumed when that is taken back.
        holder: who supervises it, or did so last.
        phase, conditions: AppWrapper's words.
        attempt: number of the current attempt, from 1; 0 before the first.
        term: of the current coordinator, from 1; grows over attempts, never back.
        retries: resets so far for the current owner's run that cost something; those that still count are `charges`.
        charges: the job's clock at each reset that the retry limit has paid for and that was not refilled.
        restarts: resets and replacements of pods so far, also those without a cost.
        course: how training has gone since the last fault, for budgets that are refilled.
        silent_terms: coordinators in a row that ended without a word.
        slots: the nodes of the current attempt; `retired` those of it that are wanted no more, since the job was made smaller.
        left_groups: groups of machines that all nodes of the current attempt have left.
        timers: the clocks that run or are paused (supervision/clocks.py).
        warned: warnings that the current attempt has given already.
        attempts, incidents, history: everything that happened; `folded` counts the oldest incidents, which are kept no more.
        verdict, progress: how it ended, and the last that was reported.
        clock: seconds of supervised time; `last_now`: wall time of the last turn.
        waits_for: what it waits for that others decide (a quota, room, another controller), for people; "" for nothing.
        result: what rank 0 left as the job's result, once it has succeeded; None where it left none.
        collected_by: the owner that took the final result, "" while nobody has.
        advice: what the next submission is to do otherwise.
        renew: its owner wants another attempt instead of the one that runs; what is there is ended first, and it costs nothing.
        conductor: of a job with roles, what its conductor remembers (supervision/conducting.py); None for all others.
        tries: what the owner was allowed when it took the job (Airflow's `max_tries`, which a clear changes); -1 is not known.
    """

    reported: ClassVar[bool] = True

    #: A record that Rallypoint writes is folded: it has about 50 attempts, 500 lines of history and 72 KiB of incidents.
    limits: ClassVar = {
        "conditions": (0, 256),
        "charges": (0, 8192),
        "slots": (0, MAX_NODES),
        "retired": (0, MAX_NODES),
        "left_groups": (0, MAX_NODES),
        "timers": (0, 8192),
        "attempts": (0, 1024),
        "incidents": (0, 4096),
        "folded": (0, 4096),
        "history": (0, 4096),
    }

    version: int = RECORD_VERSION
    name: str
    uid: str
    digest: str
    owner: str
    created_at: float
    deletion: bool = False
    suspend: bool = False
    size: Size | None = None
    wish: Wish | None = None
    holder: Holder | None = None
    phase: Phase = Phase.EMPTY
    conditions: tuple[Condition, ...] = ()
    attempt: int = 0
    term: int = 0
    retries: int = 0
    charges: tuple[float, ...] = ()
    restarts: int = 0
    course: Course = _NO_COURSE
    silent_terms: int = 0
    slots: tuple[Slot, ...] = ()
    retired: tuple[Slot, ...] = ()
    timers: tuple[Timer, ...] = ()
    warned: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    incidents: tuple[Incident, ...] = ()
    folded: tuple[Folded, ...] = ()
    history: tuple[Event, ...] = ()
    verdict: Verdict | None = None
    progress: Progress = Progress()
    clock: float = 0.0
    last_now: float = 0.0
    collected_by: str = ""
    advice: Advice = Advice()
    renew: bool = False
    tries: int = -1
    claimant: str = ""
    waits_for: str = ""
    result: Any = field(default=None, hash=False)
    conductor: ConductorRecord | None = None
    left_groups: tuple[str, ...] = ()

    @classmethod
    def new(cls, *, name: str, uid: str, digest: str, owner: str, now: float, claimant: str = "") -> JobRecord:
        """Return the record of a job that was just submitted."""
        submitted = Event(at=now, kind="submitted", detail=f"by {owner}")
        return cls(
            name=name,
            uid=uid,
            digest=digest,
            owner=owner,
            claimant=claimant,
            created_at=now,
            last_now=now,
            history=(submitted,),
        )

    @property
    def finished(self) -> bool:
        """The job has its verdict; only clean-up may be left."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def released(self) -> bool:
        """It holds no resources: zero nodes and coordinators were seen after its end.

        An AppWrapper that has succeeded keeps its ended pods, for their logs, and says so; they hold nothing.
        """
        deployed = self.find(ConditionType.RESOURCES_DEPLOYED)
        return self.finished and (deployed is None or not deployed.value or deployed.reason == "Succeeded")

    def ticked(self, *, clock: float, now: float) -> JobRecord:
        """Return the record at another moment."""
        # What `dataclasses.replace` does, without asking thirty fields one by one: each turn of each job begins with it.
        later = object.__new__(JobRecord)
        vars(later).update(vars(self), clock=clock, last_now=now)
        return later

    def condition(self, kind: ConditionType) -> bool:
        """Return a condition's value; one that was never set is false."""
        found = self.find(kind)
        return found is not None and found.value

    def find(self, kind: ConditionType) -> Condition | None:
        """Return a condition, or None when it was never set."""
        return next((c for c in self.conditions if c.type is kind), None)

    def since(self, kind: ConditionType, *, value: bool) -> float | None:
        """Return the job's clock at which a condition took `value`, or None when it does not have it."""
        found = self.find(kind)
        return found.clock if found is not None and found.value is value else None

    def with_condition(self, kind: ConditionType, reason: str, *, value: bool) -> JobRecord:
        """Return the record with a condition set; its times move only when the value changes."""
        found = self.find(kind)
        if found is not None and found.value is value:
            if found.reason == reason:
                return self
            changed = dataclasses.replace(found, reason=reason)
        else:
            changed = Condition(type=kind, value=value, reason=reason, at=self.last_now, clock=self.clock)
        others = tuple(c for c in self.conditions if c.type is not kind)
        return dataclasses.replace(self, conditions=tuple(sorted((*others, changed), key=lambda c: c.type.value)))

    def unhealthy(self, reason: str) -> JobRecord:
        """Return the record of a job that is unhealthy; another reason is another incident, whose grace begins now."""
        found = self.find(ConditionType.UNHEALTHY)
        if found is not None and found.value and found.reason != reason:
            self = self.with_condition(ConditionType.UNHEALTHY, reason, value=False)  # noqa: PLW0642  a fresh start
        return self.with_condition(ConditionType.UNHEALTHY, reason, value=True)

    def with_history(self, kind: str, *details: str) -> JobRecord:
        """Return the record with more lines of history at its own `last_now`."""
        lines = tuple(Event(at=self.last_now, kind=kind, detail=detail) for detail in details)
        return dataclasses.replace(self, history=(*self.history, *lines)[-HISTORY_LIMIT:])

    def with_slot(self, *slots: Slot) -> JobRecord:
        """Return the record with slots replaced."""
        fresh = {slot.node: slot for slot in slots}
        return dataclasses.replace(self, slots=tuple(fresh.get(s.node, s) for s in self.slots))

    def restarted(self, *, owner: str, now: float) -> JobRecord:
        """Return the record of a finished job that starts again for a new owner, with a fresh budget and all its memory."""
        fresh = dataclasses.replace(
            self,
            owner=owner,
            suspend=False,
            renew=False,
            size=None,
            phase=Phase.EMPTY,
            retries=0,
            charges=(),
            restarts=0,
            verdict=None,
            progress=Progress(),
            collected_by="",
            result=None,
            conductor=None,
            last_now=now,
        )
        return fresh.with_history("submitted", f"again, by {owner}")

    def to_json(self) -> str:
        """Return the record as JSON text that a person can read: a line for each field, and for each item of a list."""
        return codec.dumps_lines(self) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> JobRecord:
        """Read a record; raises `WireError` where it is not one, or is of another version."""
        record = codec.loads(cls, text)
        if record.version != RECORD_VERSION:
            raise codec.WireError("version", record.version, str(RECORD_VERSION))
        return record
