"""What the rendezvous remembers: the agents it hears, and the world of the last round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.agent.rendezvous.lookup import Draft, places
from rallypoint.agent.rendezvous.settings import Settings
from rallypoint.capabilities.base import CoordinatorCapability
from rallypoint.supervision.budget import Course
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Answer, Cause, Folded, Incident, IncidentId, Rung
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.missing import Missing
from rallypoint.wire.status import Event, JobState, JobStatus, Member, Progress, Sample, Verdict

__all__ = [
    "TAKEOVER",
    "Absent",
    "Attempted",
    "Capabilities",
    "ClosedRound",
    "CoordinatorStart",
    "Echoes",
    "Forming",
    "Loss",
    "MissingNodes",
    "Peer",
    "State",
    "accept",
    "holder",
    "living",
    "members",
    "opened",
    "outstanding",
    "sealed",
    "sent_away",
    "stretch",
    "waiting",
    "with_peer",
    "world_of",
]

#: Seconds that the members of a world have to find a coordinator that took over, however short their lease is: they hear of it
#: from a file, or where there is none from the coordinator itself, who asks the supervisor where they are.
TAKEOVER = 15.0

#: Agents whose questions one coordinator answers as often as they like; how many seconds each one more makes them all wait
#: longer, and how long that is at the most.
_CALM, _EACH, _LONGEST_STRETCH = 500, 0.001, 5.0

_UNTOUCHED = Course()


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An agent, as it was last heard.

    `gone_at` is when its last connection ended, None while it has one; `told` whether it was given the verdict. `assigned` is
    the round in which it was given a place since it spoke last: it trains there by now, unless the answer was lost. `patience`
    is how many seconds it has to speak at least, where it cannot know yet that we are here. `waits_since` is when it began to
    wait for a place, None while it does not; `ready_at` when it was ready to train (`newcomers.py`), None while it prepares.
    """

    report: AgentReport
    node: int
    incarnation: int
    heard_at: float
    gone_at: float | None = None
    told: bool = False
    assigned: int = 0
    patience: float = 0.0
    waits_since: float | None = None
    ready_at: float | None = None

    @classmethod
    def recalled(cls, member: Member, status: JobStatus, now: float) -> Peer:
        """Return a member of the last world whom a new coordinator has not heard yet: it has `TAKEOVER` seconds to speak."""
        report = AgentReport(
            job=status.job,
            fence=status.fence,
            node=member.node,
            incarnation=member.incarnation,
            agent=member.agent,
            host=member.host,
            local_world_size=member.local_world_size,
            store="",
            state=AgentState.DONE if member.done else AgentState.RUNNING,
            round=status.fence.round,
        )
        return cls(report=report, node=member.node, incarnation=member.incarnation, heard_at=now, patience=TAKEOVER)


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A member of the last world that is out of reach; `until` its workers may run (our own clock)."""

    agent: str
    node: int
    incarnation: int
    until: float


@dataclass(frozen=True, kw_only=True)
class Attempted:
    """The rung that answered the last process fault.

    `step` is the last step of the rank that broke, None if unknown; `at` is a time of the coordinator's own clock.
    """

    rung: Rung
    step: int | None
    at: float


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Nodes of the last world that are lost and whose replacements are awaited.

    `since` and `until` are on our own clock; `until` None: no smaller world waits for them.
    """

    nodes: frozenset[int]
    since: float
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class ClosedRound:
    """The last closed round, without its members.

    Attributes:
        store: address of its store.
        training_port: first of the ports that were free on all its nodes; 0 for none.
        kept: number of workers that continued from the round before.
        first_step: first step that was reported in it; None until then.
    """

    store: str = ""
    training_port: int = 0
    kept: int = 0
    first_step: int | None = None

    @classmethod
    def restored(cls, status: JobStatus) -> ClosedRound:
        """Return the round of a published status."""
        settled = all(incident.healed_at is not None for incident in status.incidents)
        step = status.progress.step if settled else None
        return cls(store=status.store, training_port=status.training_port, first_step=step)


@dataclass(frozen=True, kw_only=True)
class Forming:
    """The round that forms.

    Attributes:
        since: when it was first requested; `enough_since`: since when enough nodes wait for it, None before.
        reason: why the last round ended; "" before the first.
        keep: workers of the last round may continue in this one.
        dead: a member is gone for which workers of the last round may wait.
    """

    since: float = 0.0
    enough_since: float | None = None
    reason: str = ""
    keep: bool = True
    dead: bool = False


@dataclass(frozen=True, kw_only=True)
class Echoes:
    """Agents whose workers failed in a way that looks like the echo of another fault, and the time of the first failure."""

    peers: tuple[Peer, ...]
    since: float


@dataclass(frozen=True, kw_only=True)
class MissingNodes:
    """Missing nodes and overdue agents.

    Attributes:
        gone: by slot, the node that was in it last and is missing, or the node that is expected there.
        silent: agents whose report was overdue at the last tick.
    """

    gone: Mapping[int, Missing] = field(default_factory=dict, hash=False)
    silent: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class CoordinatorStart:
    """Start of a coordinator: its time, and the incidents of its predecessor, which count as if they had happened then."""

    at: float = 0.0
    inherited: frozenset[IncidentId] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The registered optional capabilities (`capabilities.py`).

    Attributes:
        registered: what is called, in this order.
        states: the state of each.
        unknown: published sections of capabilities that are not registered here; they are published again.
    """

    registered: tuple[CoordinatorCapability[Any], ...] = ()
    states: tuple[Any, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def state_of(self, name: str) -> Any:
        """Return the state of a capability by its name; raises `KeyError`."""
        return {one.name: state for one, state in zip(self.registered, self.states, strict=True)}[name]


_NO_CAPABILITIES, _NO_ROUND, _FORMING = Capabilities(), ClosedRound(), Forming()
_START, _NOBODY_MISSING = CoordinatorStart(), MissingNodes()


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything the coordinator knows.

    Attributes:
        settings, job, uid: of the job.
        fence: attempt and term of this coordinator, and the last closed round.
        state: forming, running, or over.
        peers: by name of agent.
        world: members of the last closed round.
        closed: other facts about that round.
        forming: facts about the round that forms, or will form after the running one.
        echoes: failures that look like echoes of another fault and are not charged yet; None if there are none.
        absent: members of the last world that are out of reach and may still train (`last_world.py`).
        attempted: the rung that answered the last process fault; None in profiles of the core.
        loss: lost nodes whose replacements are awaited; None without any, and in profiles of the core.
        away: agents that were told to leave, so that another node takes their place.
        start: start of this coordinator.
        course: how training goes, for the refill of budgets.
        result: what rank 0 left, once every worker of the world has ended well.
        held_verdict: verdict that is given once a last checkpoint is saved (`last_checkpoint.py`); None without one.
        capabilities: the registered optional capabilities with their states (`capabilities.py`).
        lost: how many seconds it took to heal those incidents that are counts by now, by cause.
        missing: missing nodes and overdue agents (`missing.py`).
        incidents, folded, events, progress, samples, verdict: as in `JobStatus`.
    """

    settings: Settings
    job: str
    uid: str
    fence: Fence
    state: JobState = JobState.FORMING
    peers: Mapping[str, Peer] = field(default_factory=dict, hash=False)
    world: tuple[Member, ...] = ()
    closed: ClosedRound = _NO_ROUND
    forming: Forming = _FORMING
    echoes: Echoes | None = None
    absent: tuple[Absent, ...] = ()
    attempted: Attempted | None = None
    loss: Loss | None = None
    away: frozenset[str] = frozenset()
    start: CoordinatorStart = _START
    course: Course = _UNTOUCHED
    held_verdict: Verdict | None = None
    capabilities: Capabilities = _NO_CAPABILITIES
    lost: Mapping[str, float] = field(default_factory=dict, hash=False)
    missing: MissingNodes = _NOBODY_MISSING
    incidents: tuple[Incident, ...] = ()
    folded: tuple[Folded, ...] = ()
    events: tuple[Event, ...] = ()
    progress: Progress = Progress()
    samples: tuple[Sample, ...] = ()
    verdict: Verdict | None = None
    result: Any = field(default=None, hash=False)

    @classmethod
    def fresh(cls, settings: Settings, *, job: str, uid: str, attempt: int, term: int, now: float) -> State:
        """Return the state of a job whose first round is asked for now."""
        fence, start = Fence(attempt=attempt, term=term), CoordinatorStart(at=now)
        return cls(settings=settings, job=job, uid=uid, fence=fence, forming=Forming(since=now), start=start)

    def with_peers(self, peers: Mapping[str, Peer]) -> State:
        """Return the state with other peers."""
        return self._with(peers=peers)

    @property
    def replacements_until(self) -> float | None:
        """Until when no smaller world may form, because replacements of lost nodes are awaited; None if one may."""
        return None if self.loss is None else self.loss.until

    def with_capabilities(self, capabilities: Capabilities) -> State:
        """Return the state with other states of its capabilities."""
        return self._with(capabilities=capabilities)

    def with_forming(self, **changes: Any) -> State:
        """Return the state with changes of the round that forms."""
        return self._with(forming=dataclasses.replace(self.forming, **changes))

    def _with(self, **changed: object) -> State:
        # What `dataclasses.replace` does, without handing all the other fields over one by one: each report comes by here.
        after = object.__new__(State)
        after.__dict__.update(self.__dict__, **changed)
        return after

    def when(self, incident: Incident) -> float:
        """Return when an incident was, on our own clock: that of the coordinator before us says nothing here."""
        return self.start.at if incident.id in self.start.inherited else incident.detected_at


def opened(state: State) -> State:
    """Return the state as a draft, in which peers are replaced in place until it is `sealed`; nobody else may hold it."""
    return state.with_peers(Draft(state.peers))


def sealed(state: State) -> State:
    """Return the state of a draft."""
    return state.with_peers(dict(state.peers)) if isinstance(state.peers, Draft) else state


def with_peer(state: State, peer: Peer) -> State:
    """Return the state with one peer replaced or added."""
    if isinstance(state.peers, Draft):
        state.peers.put(peer.report.agent, peer)
        return state
    return state.with_peers({**state.peers, peer.report.agent: peer})


def holder(state: State, node: int) -> Peer | None:
    """Return the peer in a slot, or None."""
    if isinstance(state.peers, Draft):
        return state.peers.holder(node)
    return next((p for p in state.peers.values() if p.node == node), None)


def accept(state: State, report: AgentReport, now: float) -> tuple[State, Peer | None]:
    """Return the state with a report taken over, and the peer whose slot it took, if any.

    A report that was overtaken by a later one of the same agent is a sign of life and nothing more.
    """
    known = state.peers.get(report.agent)
    if known is not None and report.sequence < known.report.sequence:
        return with_peer(state, dataclasses.replace(known, heard_at=now, gone_at=None, patience=0.0)), None
    if known is not None:
        # An agent takes an answer before it speaks again, and after that none that is late: its word is the truth.
        peer = dataclasses.replace(known, report=report, heard_at=now, gone_at=None, assigned=0, patience=0.0)
        return with_peer(state, _prepared(peer, now)), None
    member = places(state.world).get(report.agent)
    if member is not None:  # it was given up, and comes back
        node, incarnation = member.node, member.incarnation
    else:
        node = report.node if report.node >= 0 else _free_slot(state)
        incarnation = report.incarnation or 1 + _losses(state, node)
    replaced = holder(state, node)
    peer = Peer(report=report, node=node, incarnation=incarnation, heard_at=now)
    return with_peer(state, _prepared(peer, now)), replaced


def _prepared(peer: Peer, now: float) -> Peer:
    """Return a peer that knows since when it waits, and since when it is ready."""
    if peer.report.state is not AgentState.WAITING:
        return peer if peer.waits_since is None else dataclasses.replace(peer, waits_since=None, ready_at=None)
    since = now if peer.waits_since is None else peer.waits_since
    ready = now if peer.ready_at is None and peer.report.ready else peer.ready_at
    return dataclasses.replace(peer, waits_since=since, ready_at=ready)


def _free_slot(state: State) -> int:
    if isinstance(state.peers, Draft):
        return state.peers.free_slot()
    taken = {p.node for p in state.peers.values()}
    return next(slot for slot in range(len(taken) + 1) if slot not in taken)


def _losses(state: State, node: int) -> int:
    return sum(1 for i in state.incidents if i.cause is Cause.NODE and i.id.node == node)


def living(state: State) -> tuple[Peer, ...]:
    """Return the agents that may still ask for something."""
    return tuple(p for p in state.peers.values() if p.report.state is not AgentState.LEAVING)


def members(state: State) -> tuple[Peer, ...]:
    """Return the agents of the last world that are still there, in order of group rank."""
    return tuple(state.peers[m.agent] for m in state.world if m.agent in state.peers)


def waiting(state: State) -> tuple[Peer, ...]:
    """Return the agents that wait for a place in the next round and may have one."""
    return tuple(p for p in living(state) if p.report.state is AgentState.WAITING and p.report.agent not in state.away)


def sent_away(status: JobStatus) -> frozenset[str]:
    """Return the agents that an earlier coordinator told to leave."""
    gone = {
        (incident.id.node, incident.id.sequence)
        for incident in status.incidents
        if incident.cause is Cause.NODE and incident.answer is Answer.RETRY_ELSEWHERE
    }
    return frozenset(m.agent for m in status.world if (m.node, m.incarnation) in gone)


def stretch(state: State) -> float:
    """Return how many seconds longer than they asked for agents are held back, and may be silent: thousands take turns.

    Those that are still to come count: who came first would else ask again while the others are let in.
    """
    return min(max(0, max(len(state.peers), state.settings.min_nodes) - _CALM) * _EACH, _LONGEST_STRETCH)


def outstanding(state: State) -> tuple[Peer, ...]:
    """Return the agents that have not yet left the last round: they may still be stopping their workers, or starting them."""
    return tuple(p for p in living(state) if p.report.state is not AgentState.WAITING or p.assigned > p.report.round)


def world_of(chosen: Iterable[Peer]) -> tuple[Member, ...]:
    """Return the world of agents given in order of group rank: ranks are dealt out node by node."""
    world, first_rank = [], 0
    for group_rank, peer in enumerate(chosen):
        size = peer.report.local_world_size
        world.append(
            Member(
                node=peer.node,
                incarnation=peer.incarnation,
                agent=peer.report.agent,
                host=peer.report.host,
                local_world_size=size,
                group_rank=group_rank,
                first_rank=first_rank,
            )
        )
        first_rank += size
    return tuple(world)
