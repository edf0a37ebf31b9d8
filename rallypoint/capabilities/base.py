"""The contract of optional capabilities.

A capability has up to two halves. The coordinator half is pure: its state is frozen, `now` is an argument, and it requests
changes as values (`Effect`). The rendezvous stores the state, calls the methods below and applies the effects. The node half
runs in the agent of each node, adds a section to each report, and receives sections of replies. The two halves communicate
only through sections (`rallypoint.wire.sections`).

The rendezvous and the node agent call all registered capabilities (`rallypoint.capabilities.NAMES`), and also work with none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rallypoint.agent.tls import Tls
from rallypoint.capabilities import modules
from rallypoint.wire.fence import Fence
from rallypoint.wire.hang import Evidence
from rallypoint.wire.incident import Incident, IncidentId
from rallypoint.wire.line import FromAgent, FromWorker
from rallypoint.wire.messages import AgentReport, AgentState, Assignment, Continue, WorkerReport
from rallypoint.wire.plan import Plan
from rallypoint.wire.progress import ProgressSlot
from rallypoint.wire.pulse import Learned
from rallypoint.wire.sections import Section
from rallypoint.wire.status import JobState, JobStatus, Member, Verdict

__all__ = [
    "CoordinatorCapability",
    "Effect",
    "EndAttempt",
    "EndSaving",
    "Gauge",
    "HealIncident",
    "NodeCapability",
    "NodeContext",
    "RecordEvent",
    "RecordIncident",
    "ReplaceNode",
    "ReportedPeer",
    "RestartForming",
    "RestartWorkers",
    "RoundView",
    "ServiceContext",
    "coordinator_capabilities",
    "node_capabilities",
    "services",
]

S = TypeVar("S")


# --- The coordinator's half --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RecordEvent:
    """Add a line to the job's events; with `once`, not if the last event is the same."""

    kind: str
    detail: str
    once: bool = False


@dataclass(frozen=True, kw_only=True)
class ReplaceNode:
    """Remove the node of an agent from the job, so that another machine takes its place; does nothing if it is gone.

    Attributes:
        agent: its agent.
        reason: sentence of the incident and of the event; `error` is the error of its culprit.
        rule: rule that decided.
    """

    agent: str
    reason: str
    error: str
    rule: str


@dataclass(frozen=True, kw_only=True)
class EndAttempt:
    """End the attempt with a verdict, unless it has one; `result` is the result of a job that succeeds by it."""

    verdict: Verdict
    result: Any = None


@dataclass(frozen=True, kw_only=True)
class EndSaving:
    """End an attempt whose verdict is held back for a last checkpoint.

    Attributes:
        saved: whether there is a last checkpoint.
        detail: sentence of the event and of the verdict.
    """

    saved: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class RecordIncident:
    """Add an incident of the job; its budget pays if its rung is not `notify`."""

    incident: Incident


@dataclass(frozen=True, kw_only=True)
class HealIncident:
    """Note that an incident has ended, if it has not."""

    incident: IncidentId


@dataclass(frozen=True, kw_only=True)
class RestartWorkers:
    """Add an incident, and restart all workers for it; a spent budget ends the attempt."""

    incident: Incident


@dataclass(frozen=True, kw_only=True)
class RestartForming:
    """Give the next round its whole join timeout from now on."""


#: Changes that a capability may request from the rendezvous.
Effect = RecordEvent | RecordIncident | HealIncident | ReplaceNode | RestartWorkers | RestartForming | EndAttempt | EndSaving


class ReportedPeer(Protocol):
    """An agent as the rendezvous knows it."""

    @property
    def node(self) -> int:
        """Its slot."""
        ...

    @property
    def incarnation(self) -> int:
        """The incarnation of its slot."""
        ...

    @property
    def gone_at(self) -> float | None:
        """When its last connection closed; None if it has one."""
        ...

    @property
    def report(self) -> AgentReport:
        """Its last report."""
        ...


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """The rendezvous data that a capability may read: the last closed round and the last report of each agent.

    Attributes:
        fence: attempt, term and round.
        state: forming, running, or over.
        world: members of the last closed round.
        places: the same by the names of their agents.
        peers: known agents by name, those outside the world included.
        incidents: of the job, as in `JobStatus`.
        away: agents that must leave, so that another node takes their place.
        verdict: of the attempt, None while it has none.
        ending: the verdict is held back until the effect `EndSaving`.
        min_nodes, max_nodes: bounds of the world that are in force.
        since: when this coordinator began.
    """

    fence: Fence
    state: JobState
    world: tuple[Member, ...]
    places: Mapping[str, Member]
    peers: Mapping[str, ReportedPeer]
    incidents: tuple[Incident, ...]
    away: frozenset[str]
    verdict: Verdict | None
    ending: bool
    min_nodes: int
    max_nodes: int
    since: float

    def members(self) -> Iterator[tuple[Member, AgentReport]]:
        """Yield each known member of the world with its last report, in the order of group ranks."""
        for member in self.world:
            peer = self.peers.get(member.agent)
            if peer is not None:
                yield member, peer.report

    def survivors(self) -> Iterator[AgentReport]:
        """Yield the last reports of the members of the world that do not leave."""
        for member, report in self.members():
            if report.state is not AgentState.LEAVING and member.agent not in self.away:
                yield report


class CoordinatorCapability(Generic[S]):
    """One capability in the coordinator; `S` is its frozen state. A capability overrides the methods that it needs.

    `name` is the name of the capability's folder. A method that changes nothing returns the identical state object: the
    rendezvous compares identities, because it calls `on_report` and `on_tick` for each of thousands of reports.
    """

    name: str

    def restore(self, published: JobStatus | None, *, continues: bool, now: float) -> S:
        """Return the state of a coordinator that starts at `now`.

        Args:
            published: last status of the same job, or None.
            continues: True if this status is of the same attempt, so that the round of the status continues.

        """
        raise NotImplementedError

    def on_report(self, state: S, report: AgentReport, before: AgentReport | None, view: RoundView, now: float) -> S:
        """Return the state after a report; `before` is the previous report of the same agent, or None."""
        return state

    def on_request(self, state: S, request: object, view: RoundView, now: float) -> tuple[S, Sequence[Effect]]:
        """Return the state and the effects after a request of the capability's own service (`ServiceContext.send`)."""
        return state, ()

    def on_tick(self, state: S, view: RoundView, now: float) -> tuple[S, Sequence[Effect]]:
        """Return the state and the effects at `now`; called after `on_report` for all reports that arrived."""
        return state, ()

    def after_losses(self, state: S, view: RoundView, now: float) -> tuple[S, Sequence[Effect]]:
        """Return the state and the effects at `now`; called while there is no verdict, after lost agents were removed."""
        return state, ()

    def after_tick(self, state: S, view: RoundView, now: float) -> S:
        """Return the state at the end of a tick, after a round was closed or ended."""
        return state

    def holds_round(self, state: S) -> bool:
        """Return whether the next round must wait for the capability; its join timeout does not expire meanwhile."""
        return False

    def before_round(self, state: S, view: RoundView, ready: Sequence[ReportedPeer], now: float) -> tuple[S, Sequence[Effect]]:
        """Return the state and the effects when a round of `ready` agents could start; see `holds_round`."""
        return state, ()

    def reply_for(self, state: S, report: AgentReport) -> Section | None:
        """Return the section of `Continue` for an agent whose workers run, by its last report; None without a request."""
        return None

    def assignment_for(self, state: S, member: Member, view: RoundView) -> Section | None:
        """Return the section of a member's `Assignment`."""
        return None

    def reply_for_waiting(self, state: S, report: AgentReport) -> Section | None:
        """Return the section of `Continue` for an agent that waits for a round, by its last report; None without a request."""
        return None

    def can_save(self, reports: Iterable[AgentReport]) -> bool:
        """Return whether one of these agents can save a last checkpoint, after which the capability requests `EndSaving`."""
        return False

    def reply_key(self, state: S) -> object:
        """Return a value that changes whenever `reply_for` may return something else for the same report."""
        return None

    def report_period(self, state: S, view: RoundView) -> float:
        """Return the seconds between two reports of an agent that the capability needs; 0 as usual."""
        return 0.0

    def next_deadline(self, state: S) -> float | None:
        """Return the earliest time at which `on_tick` changes the state without a report, or None."""
        return None

    def to_status(self, state: S, view: RoundView) -> Section | None:
        """Return the section of the published status."""
        return None


def coordinator_capabilities(plan: Plan) -> tuple[CoordinatorCapability[object], ...]:
    """Return the coordinator's half of each registered capability that has one."""
    return tuple(module.create(plan) for module in modules("coordinator"))


# --- The node's half -----------------------------------------------------------------------------------------------------


class ProcessSpawner(Protocol):
    """The part of `rallypoint.agent.workers.spawner.Spawner` that capabilities use."""

    async def spawn(self, command: Any, ended: Callable[[int], None]) -> int:
        """Start a `Command` and return its process id; `ended` is called with its exit code. Raises `OSError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """Values that a node agent passes to its capabilities.

    Attributes:
        plan: of the job.
        attempt: of the job.
        host: address of the node.
        secret: of the job; "" if no other node takes part.
        tls: certificates of the job; None without TLS.
        folder: of the node's own files.
        pids: returns the process ids of the living workers by local rank.
        changed: a capability calls it when the content of its section has changed.
        send: sends a message to a worker by its local rank; returns False if the worker has no connection to the agent.
        spawner: starts processes.
        evidence: collects stacks and states of the workers, as the answer to the request of a number.
        learned: returns the durations of the phases of the workers so far in this round.
        stop_workers: sends SIGTERM to all workers, and SIGKILL after the grace period.
    """

    plan: Plan
    attempt: int
    host: str
    secret: str
    tls: Tls | None
    folder: Path
    pids: Callable[[], Mapping[int, int]]
    changed: Callable[[], None]
    send: Callable[[int, FromAgent], bool]
    stop_workers: Callable[[], None]
    spawner: ProcessSpawner
    evidence: Callable[[int], Awaitable[Evidence]]
    learned: Callable[[], tuple[Learned, ...]]


class NodeCapability:
    """One capability in a node agent: it overrides the methods that it needs. All are called in the agent's event loop."""

    def environment(self) -> Mapping[str, str]:
        """Return environment variables for each worker of the job."""
        return {}

    async def begin(self) -> None:
        """Prepare, before the first report."""

    async def close(self) -> None:
        """Release all resources. Does nothing if `begin` was not called."""

    async def begin_round(self, round_: int) -> None:
        """Prepare for a round, before its workers start."""

    def worker_environment(self, environ: Mapping[str, str], round_: int, local_rank: int) -> Mapping[str, str]:
        """Return environment variables for one worker of a round; `environ` is the environment without them."""
        return {}

    def progress(self, local_rank: int, slot: ProgressSlot) -> ProgressSlot:
        """Return the progress of a worker of the round; `slot` is the progress that the worker reported itself."""
        return slot

    async def before_workers(self, assignment: Assignment) -> None:
        """Prepare for the start of the workers of a round."""

    def after_workers(self) -> None:
        """Note that all workers of the round were started; not called if one of them could not be started."""

    def on_message(self, local_rank: int, message: FromWorker) -> None:
        """Process a message of a worker (`rallypoint.wire.line`)."""

    def on_failure(self) -> None:
        """Note that a worker ended badly, or that workers were stopped without the success of the job."""

    def before_regroup(self) -> Awaitable[None] | None:
        """Return what must end before the node joins the next round, after its workers have ended; None for nothing."""
        return None

    def urgent(self) -> object:
        """Return a value; the agent sends a report as soon as this value changes."""
        return None

    def report(self, workers: Sequence[WorkerReport]) -> Section | None:
        """Return the section of the next report; `workers` are those of that report."""
        return None

    def on_reply(self, reply: Assignment | Continue, *, waiting: bool) -> None:
        """Process the coordinator's reply; `waiting`: the node waits for a place in a round."""


def node_capabilities(context: NodeContext) -> tuple[NodeCapability, ...]:
    """Return the node half of each registered capability that the plan enables."""
    made = (module.create(context) for module in modules("node"))
    return tuple(capability for capability in made if capability is not None)


# --- Services of the coordinator's process -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """What the coordinator's process gives a service.

    Attributes:
        plan: of the job.
        host: address on which the coordinator listens.
        pod: whether the coordinator has a pod of its own.
        clock: returns seconds since the epoch; never goes back.
        status: returns the status as it is now.
        note: adds an event, by kind and detail.
        send: passes a request to the coordinator's half of a capability, by its name (`CoordinatorCapability.on_request`).
        state_of: returns the state of the coordinator's half of a capability, by its name, and what it may read.
        requested: returns a field of the job's record as JSON, None if it is not set; None if there is no supervisor.
    """

    plan: Plan
    host: str
    pod: bool
    clock: Callable[[], float]
    status: Callable[[], JobStatus]
    note: Callable[[str, str], None]
    send: Callable[[str, object], None]
    state_of: Callable[[str], tuple[Any, RoundView]]
    requested: Callable[[str], Awaitable[Any]] | None


def services(context: ServiceContext) -> Iterator[AbstractAsyncContextManager[object]]:
    """Yield what each registered capability runs beside the coordinator, from its first status to its end."""
    return (module.running(context) for module in modules("service"))


# --- What is shown of it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """A metric of a capability; `report.py` of a slice has `gauges(status)`, and `facts(status)` for lines of `status`.

    `value` is a number, or one for each label.
    """

    name: str
    help: str
    value: float | Mapping[tuple[str, str], float]
