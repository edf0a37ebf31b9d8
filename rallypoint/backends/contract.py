"""What every backend can do. The loop in `supervise.py` and everything above it know only this file."""

from __future__ import annotations

import abc
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rallypoint.backends.cursors import Cursor
from rallypoint.supervision.actions import Action
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.supervision.role_records import UnitKey, UnitSeen
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.role_plans import RolePlan
from rallypoint.wire.status import JobStatus

if TYPE_CHECKING:
    from rallypoint.job import ElasticJob

__all__ = [
    "ROLE_OWNER",
    "ActionError",
    "Backend",
    "BackendError",
    "Blueprint",
    "Changes",
    "ConflictError",
    "HeldError",
    "JobExistsError",
    "JobFinishedError",
    "JobNotFoundError",
    "LogLine",
    "PlaceClock",
    "Pulse",
    "ResizeError",
    "Stored",
    "SubmitError",
    "Tail",
    "UnitBackend",
    "is_role_of",
    "role_claimant",
    "role_job",
]


class BackendError(RallypointError):
    """Something outside Rallypoint (disk, network, API) does not work; trying again may."""


class SubmitError(BackendError):
    """The job cannot be submitted as it is; nothing was left behind."""


class JobExistsError(BackendError):
    """A job of this name is there already, with another spec or another owner."""

    @classmethod
    def of(cls, existing: Stored, blueprint: Blueprint, *, owner: str, where: str = "") -> JobExistsError:
        """Return the error that tells the two apart; `where` follows the job's name (` in namespace team`)."""
        record, plan = existing.record, blueprint.plan
        return cls(
            f"name: a job {record.name} already exists{where} (owner {record.owner}, "
            f"{record.phase.value or 'just submitted'}, spec {record.digest}; this one: owner {owner}, spec "
            f"{plan.digest}); choose another name, or delete it with: rallypoint delete {record.name}"
        )


class JobNotFoundError(BackendError):
    """There is no job of this name."""


class JobFinishedError(BackendError):
    """The job is over, or is being deleted: what was asked for has no meaning any more."""


class ResizeError(BackendError):
    """The job cannot have so many nodes, or cannot be resized at all; trying again cannot help."""


class ConflictError(BackendError):
    """The record was changed by somebody else since it was loaded: load again and decide again."""


class HeldError(BackendError):
    """Another process supervises this job; `holder` says which."""

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(f"job {name} is supervised by {holder}; only one process may supervise a job")
        self.holder = holder


class ActionError(BackendError):
    """An action could not be done; `fatal` when trying it again cannot help (bad image, missing interpreter).

    `waits`: only room is missing, which may come: the wait costs the job nothing.
    """

    def __init__(self, reason: str, *, fatal: bool = False, waits: bool = False) -> None:
        super().__init__(reason)
        self.fatal, self.waits = fatal, waits


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A submission before it is performed: what would be created, in the backend's own form, printable as JSON or YAML.

    Attributes:
        job: what the user asked for; `plan` what it compiles to.
        objects: one mapping per folder, process or manifest, in order of creation.
        notes: what the backend will not use, for people.
        warnings: what does not act as it is written; `submit` prints them, too.
        attached: further texts that are kept with the job, by name.
        function: what the workers call, where the job is a function (wire/function.py): kept where only the job can read it,
            and never printed.
        parent: the job that this is an elastic role of, as its backend knows it; None for a job of its own.
        claimant: who submits it, the same over all tries; "" where that does not matter. A job of another claimant is not
            adopted.
    """

    job: ElasticJob
    plan: Plan
    objects: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    attached: Mapping[str, str] = field(default_factory=dict)
    function: str = field(default="", repr=False)
    claimant: str = ""
    parent: Any = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A record as it was loaded; `version` is what `save` compares."""

    record: JobRecord
    plan: Plan
    version: str

    def is_of(self, blueprint: Blueprint, *, owner: str) -> bool:
        """Return whether it is what this submission would create: to submit twice is to submit once."""
        return (self.record.digest, self.record.owner) == (blueprint.plan.digest, owner)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of one rank's log; the text of `cursor`, given to `logs`, continues after it."""

    rank: int
    stream: str
    text: str
    cursor: Cursor | str


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The last lines of a job's logs, in the order of `Backend.logs`; `cursor` given to `logs` continues after them.

    A long line is shortened and says so. The lines have no cursors of their own.
    """

    lines: tuple[LogLine, ...] = ()
    cursor: str = ""


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """The heartbeat of a supervising process, as it was read.

    Attributes:
        beat: another one whenever it is read a while later, as long as the process lives; it means nothing else.
        alive: whether the process lives; None where only a change of `beat` can tell.
        at: its last beat, in seconds since the epoch on its own clock; for people.
        note: what keeps it from its work, for people; "" is nothing.
    """

    beat: str
    alive: bool | None
    at: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PlaceClock:
    """A clock that runs and that no record tells of: `within` seconds from now `then` happens unless something changes.

    `clock` is its name in the table of clocks (supervision/clocks.py).
    """

    clock: str
    within: float
    then: str


class Changes(abc.ABC):
    """What happens to one job from now on; what happens between two calls of `wait` is not lost."""

    @abc.abstractmethod
    async def wait(self, timeout: float) -> None:
        """Return when something of the job may have changed since the last call, at the latest after `timeout` seconds."""


class Backend(abc.ABC):
    """Where jobs run.

    All methods are safe to call from an event loop: none blocks it. Names are job names. Every method may raise
    `BackendError`; what is said below comes on top.
    """

    #: Word that users give: `local`, `kubernetes`.
    name: str

    #: Seconds between two looks at a job of which nothing was heard meanwhile.
    poll: float = 1.0

    #: A turn that changed nothing but the job's clock is saved this often, in seconds; far below `Policy.max_gap`.
    clock_saved_every: float = 10.0

    @abc.abstractmethod
    def plan(self, job: ElasticJob, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
        """Return what `submit` would create. Pure; raises `SubmitError` for a job that this backend cannot run.

        `orphan_policy` is that of the one who submits, for a job that names none itself.
        """

    @abc.abstractmethod
    async def submit(self, blueprint: Blueprint, *, owner: str) -> Stored:
        """Create the job's record, from which any supervisor takes it on; starts no process.

        A second call with the same name, spec and owner returns what is there. Raises `JobExistsError` when the name is taken
        by another spec or owner, `SubmitError` when something is missing here (script, port, disk); then nothing is left.
        A submission that is cut off half-way leaves no job.
        """

    @abc.abstractmethod
    async def load(self, name: str) -> Stored | None:
        """Return the job's record and plan, or None when there is no such job (any more)."""

    @abc.abstractmethod
    async def save(self, record: JobRecord, *, version: str, blueprint: Blueprint | None = None) -> Stored:
        """Replace the record if it is still at `version`, durably; raises `ConflictError` otherwise, also when it is gone.

        With a `blueprint` the job and its plan are replaced, too, and checked before: raises `SubmitError` as `submit` does.
        """

    @abc.abstractmethod
    async def observe(self, record: JobRecord) -> Observation:
        """Return what is there of all attempts of this job; first the nodes, then the coordinator's status."""

    async def confirm(self, record: JobRecord) -> Observation | None:
        """Return what `observe` does with nothing in it older than this call; None where that is always so.

        What ends a phase rests on it: a deadline, an end, and that nothing is left.
        """
        return None

    @abc.abstractmethod
    async def act(self, record: JobRecord, plan: Plan, action: Action) -> None:
        """Do one action. Doing it twice is doing it once; removing what is gone is fine. Raises `ActionError`.

        Removing returns when the end was asked for, not when it has come. A job that was submitted anew under the same name
        (another `uid`) is left alone.
        """

    @abc.abstractmethod
    def changes(self, name: str) -> AbstractAsyncContextManager[Changes]:
        """Follow a job while the context lasts. The end of a node wakes at once, all else soon.

        There need be no such job: then `wait` lasts until its time-out, or until there is one.
        """

    @abc.abstractmethod
    def hold(self, name: str, *, holder: str) -> AbstractAsyncContextManager[None]:
        """Be the only supervisor of a job while the context lasts. Ends with the process at the latest.

        Raises `HeldError` while another holds it, in this process or in any other, and `JobNotFoundError`.
        """

    @abc.abstractmethod
    def heartbeat(self, holder: str) -> AbstractAsyncContextManager[Holder]:
        """Have a heart that beats while the context lasts; gives the name under which records know this process.

        A process (an event loop, to be exact: one that is stuck must not look alive) has one heart, however many jobs it
        supervises: a second context joins the first, and it beats until the last is left. `holder` is for people. A beat that
        cannot be written is logged and tried again; it ends nobody's supervision.
        """

    @abc.abstractmethod
    async def pulse(self, holder: Holder) -> Pulse | None:
        """Return the heartbeat of a supervising process as it is now, or None when it has none (any more).

        None says that it ended by its own will, or was killed and its traces tidied away. To ask twice changes nothing.
        """

    @abc.abstractmethod
    async def sweep(self, record: JobRecord) -> bool:
        """End by force what is left of a job whose record was deleted from outside; return whether nothing is left.

        To be called until it returns True; then, and for a job that left nothing, it does nothing. A job that is there, with
        the record's `uid`, is left alone, and so is another one of its name.
        """

    async def is_settled(self, record: JobRecord) -> bool:
        """Return whether nothing is left of a job that was deleted, not even the process beside it that supervised it."""
        return not record.deletion or await self.load(record.name) is None

    async def check_size(self, stored: Stored, size: Size) -> None:  # noqa: B027  most places have no say in it
        """Raise `ResizeError` for bounds that a job cannot have in this place, whatever its plan allows."""

    @abc.abstractmethod
    async def status(self, name: str) -> JobStatus | None:
        """Return the coordinator's last word, or None before its first."""

    async def written(self, name: str) -> JobStatus | None:
        """Return what is written down of the same, and ask nobody: for those who look often and may be a few seconds late."""
        return await self.status(name)

    async def status_age(self, name: str, status: JobStatus) -> float | None:
        """Return how many seconds ago `status`, which was just read, was written or given; None where no one clock tells.

        The clocks of two machines are never compared.
        """
        return None

    async def clocks(self, record: JobRecord, status: JobStatus | None) -> tuple[PlaceClock, ...]:
        """Return the clocks of the place that run for a job whose `status` was just read; for people who look on."""
        return ()

    @abc.abstractmethod
    async def names(self) -> tuple[str, ...]:
        """Return the names of all jobs, sorted."""

    @abc.abstractmethod
    def logs(self, name: str, *, rank: int | None = None, cursor: str = "", follow: bool = False) -> AsyncIterator[LogLine]:
        """Yield the lines of one rank (or of all, in turn) after `cursor`; with `follow` until the job is over.

        Attempts and rounds come in order, within one the ranks, and of each rank first `out`, then `err`; with `follow` each
        line as it is written. A line that is not finished yet is kept back. Raises `JobNotFoundError`.
        """

    @abc.abstractmethod
    async def tail(self, name: str, *, lines: int, rank: int | None = None) -> Tail:
        """Return the last lines of each stream of one rank (or of all), without reading what is before them.

        Raises `JobNotFoundError`.
        """

    def units(self, name: str) -> UnitBackend:
        """Return where the units of a job with roles run; raises `SubmitError` where this backend runs none."""
        raise SubmitError(f"job {name}: roles: the {self.name} backend does not run jobs with several roles")

    @abc.abstractmethod
    async def close(self) -> None:
        """Release what the backend holds in this process. The jobs go on."""


def role_job(name: str, role: str) -> str:
    """Return the name of the job that is an elastic role of job `name`."""
    return f"{name}-{role}"


#: Who owns the job of an elastic role: its job, and which life of the role it is.
ROLE_OWNER = re.compile(r"(?P<job>.+)/(?P<attempt>\d{1,9})\.(?P<reset>\d{1,9})\.(?P<incarnation>\d{1,9})", re.ASCII | re.DOTALL)


def role_claimant(record: JobRecord) -> str:
    """Return the claimant of the jobs of the elastic roles of a job."""
    return f"job {record.name} ({record.uid})"


def is_role_of(role: JobRecord, record: JobRecord) -> bool:
    """Return whether a job is an elastic role of another one: on a cluster any job can have the name of one."""
    owner = ROLE_OWNER.fullmatch(role.owner)
    return owner is not None and owner["job"] == record.name and role.claimant in ("", role_claimant(record))


class UnitBackend(abc.ABC):
    """Where the instances of the simple roles of one job run.

    Safe to call from an event loop; every method may raise `BackendError`.

    A unit, or whatever starts its process, must become visible to `observe` first, then read the stored record, and run only if
    `conductor.wants(record.conductor, key)`: so a supervisor that was stopped for a while starts nothing that is not wanted
    any more.

    An elastic role is a job of its own, named by `role_job`, in `jobs`; the loop in `conducting.py` submits, supervises and
    suspends it by the usual contract.
    """

    #: Holds the jobs of elastic roles. `Backend.names` of the backend that users see does not list them.
    jobs: Backend

    @abc.abstractmethod
    async def observe(self, record: JobRecord, plan: Plan) -> tuple[UnitSeen, ...]:
        """Return every life of an instance of a simple role that was ever started, and what became of it.

        `present` is true while any process of it may run. A life whose end nobody saw is `lost`. `reason` is a phrase about the
        unit (`rollout 1 exited with code 3`). Lives of earlier attempts may be forgotten once nothing of them is left.
        """

    async def admit(self, record: JobRecord, plan: Plan) -> None:  # noqa: B027  most backends place each unit by itself
        """Reserve the resources of all units of the job at once, where the backend does that, before an elastic role starts.

        Raises `ActionError`, with `waits` while resources are missing.
        """

    @abc.abstractmethod
    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        """Start a life of an instance, unless it was started before, whatever became of it.

        Raises `ActionError`: with `waits` nothing was started and nothing is charged, with `fatal` the job fails.
        """

    @abc.abstractmethod
    async def stop(self, record: JobRecord, plan: Plan, key: UnitKey, *, force: bool) -> None:
        """End a life: with SIGTERM, or at once if `force`. Returns when that was asked for; what is gone is fine.

        After SIGTERM a backend waits for as long as it takes: the conductor asks again by force when the grace is over.
        """

    @abc.abstractmethod
    async def release(self, record: JobRecord, plan: Plan) -> bool:
        """End what serves units (hosts of instances, zygotes, directory); return whether nothing is left.

        Called again and again when no unit is left of a job that is over, suspended or being deleted.
        """

    @abc.abstractmethod
    async def blueprint(self, record: JobRecord, plan: Plan, role: RolePlan) -> Blueprint:
        """Return the submission of an elastic role as a job of its own (`role_job`), with `role.read()` as its plan.

        The caller adds the variables of the job to the plan's `env`. `roles.one_role` makes its `ElasticJob`.
        """

    @abc.abstractmethod
    def environment(self, record: JobRecord, plan: Plan) -> Mapping[str, str]:
        """Return the variables of every process of the job that only the backend knows.

        They say where instances find each other: RALLYPOINT_ROLES_URL, RALLYPOINT_ROLES_SECRET_FILE (or
        RALLYPOINT_ROLES_SECRET), RALLYPOINT_CONFIG_FILE, and RALLYPOINT_HOST where it is the same for all.
        """

    def logs(
        self, record: JobRecord, role: RolePlan, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Yield what the instances of a simple role have written, as `Backend.logs` does; `rank` is the index of one."""
        raise _no_output(record, role)

    async def tail(self, record: JobRecord, role: RolePlan, *, lines: int, rank: int | None = None) -> Tail:
        """Return the last lines of the instances of a simple role, as `Backend.tail` does."""
        raise _no_output(record, role)


def _no_output(record: JobRecord, role: RolePlan) -> Exception:
    return BackendError(
        f"job {record.name}: this backend cannot read the output of role {role.name}; read the log on the machine of the role"
    )
