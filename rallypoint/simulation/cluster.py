"""The simulated cluster: it shows the pods of the trace and performs the actions of the supervisor as far as the trace allows.

What is asked to be created is there at once, pending, and runs after `startup`; what is asked to be removed is gone after
`removal`, or at once where it is removed by force. Where these are None, pods of wrapped components come only when the trace
tells of them, and nothing goes before the trace says so: that is how AppWrapper's behaviour is written down. Two things need no
telling: coordinators come and go as they are asked to, and so do pods that another incarnation has replaced.

The simulated coordinator publishes the status that follows from the running pods, or the one that the trace sets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.simulation.trace import CreateFailure, Pod, Step
from rallypoint.supervision.actions import (
    Action,
    CreateComponents,
    CreateCoordinator,
    CreateNode,
    RemoveComponents,
    RemoveCoordinator,
    RemoveNode,
)
from rallypoint.supervision.observation import Components, CreateError, NodeSeen, NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.codec import WireError
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.status import JobState, JobStatus, Member, Outcome, Progress, Verdict

__all__ = ["Key", "SimulatedCluster"]

#: (attempt, slot or -1, incarnation or term)
Key = tuple[int, int, int]

#: The key under which the wrapped components go by themselves.
_COMPONENTS: Key = (0, -2, 0)

_LIVE = (NodeState.STARTING, NodeState.RUNNING, NodeState.ENDING, NodeState.UNKNOWN)

_VERDICTS = {
    "succeeded": Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="all ranks succeeded"),
    "failed": Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message="the workers failed"),
}


@dataclass
class _SimulatedCoordinator:
    """A stand-in for the coordinator of the current attempt.

    Attributes:
        word: `auto`, `silent`, `forming` or `running`.
        attempt: which everything below belongs to; the next attempt begins with nothing.
        last: the last status; it stays readable when the coordinator is gone.
    """

    word: str = "auto"
    attempt: int = 0
    round: int = 0
    world: tuple[Member, ...] = ()
    progress: Progress = Progress()
    verdict: Verdict | None = None
    incidents: tuple[Incident, ...] = ()
    last: JobStatus | None = None

    def apply(self, step: Step, record: JobRecord, path: str) -> None:
        """Apply a step of the trace; `path` names the step in errors."""
        self._follow(record)
        self.word = step.status or self.word
        if step.step is not None or step.checkpoint is not None:
            number = self.progress.step if step.step is None else step.step
            checkpoint = self.progress.checkpoint if step.checkpoint is None else step.checkpoint
            self.progress = Progress(step=number, checkpoint=checkpoint, at=step.at)
        if step.verdict is not None:
            self.verdict = _read_verdict(step.verdict, f"{path}.verdict")
        for index, told in enumerate(step.incidents):
            incident = _read_incident(told, f"{path}.incidents[{index}]", self._next_id(record, told), at=step.at)
            self.incidents = (*self.incidents, incident)

    def _next_id(self, record: JobRecord, told: Mapping[str, Any]) -> IncidentId:
        node, local_rank = told.get("node", -1), told.get("local_rank", -1)
        return IncidentId(
            attempt=record.attempt, round=max(1, self.round), node=node, local_rank=local_rank, sequence=len(self.incidents) + 1
        )

    def report(self, record: JobRecord, nodes: tuple[NodeSeen, ...], *, min_nodes: int, speaks: bool) -> JobStatus | None:
        """Return the coordinator's last status; a new one if it `speaks` now."""
        self._follow(record)
        told = self.word != "auto" or self.verdict is not None or self.incidents or self.progress.step is not None
        if self.word == "silent" or not (speaks or told) or not record.attempt:
            return self.last
        state = self._state(record, nodes, min_nodes)
        self.last = JobStatus(
            job=record.name,
            uid=record.uid,
            fence=Fence(attempt=record.attempt, term=record.term, round=self.round),
            state=state,
            world=self.world,
            progress=self.progress,
            incidents=self.incidents,
            verdict=self.verdict,
        )
        return self.last

    def _follow(self, record: JobRecord) -> None:
        if record.attempt != self.attempt:
            self.attempt, self.round, self.world = record.attempt, 0, ()
            self.progress, self.verdict, self.incidents = Progress(), None, ()

    def _state(self, record: JobRecord, nodes: tuple[NodeSeen, ...], min_nodes: int) -> JobState:
        mine = tuple(n for n in nodes if _wanted(n, record))
        running = tuple(n for n in mine if n.state is NodeState.RUNNING and not n.deleting)
        if self.verdict is None and len(mine) >= min_nodes and all(n.state is NodeState.SUCCEEDED for n in mine):
            # An agent ends only when its job's verdict is durable: all well means that it was told.
            self.verdict = _VERDICTS["succeeded"]
        if self.verdict is not None:
            return JobState.SUCCEEDED if self.verdict.outcome is Outcome.SUCCEEDED else JobState.FAILED
        trains = self.word == "running" or (self.word == "auto" and len(running) >= min_nodes)
        if not trains:
            return JobState.FORMING
        self._close_round(running)
        return JobState.RUNNING

    def _close_round(self, running: tuple[NodeSeen, ...]) -> None:
        world = tuple(
            Member(
                node=n.node,
                incarnation=n.incarnation,
                agent=f"agent-{n.node}.{n.incarnation}",
                host=n.host,
                local_world_size=1,
                group_rank=rank,
                first_rank=rank,
            )
            for rank, n in enumerate(sorted(running, key=lambda n: n.node))
        )
        if world != self.world:
            self.round, self.world = self.round + 1, world


def _read_verdict(value: Any, path: str) -> Verdict:
    """Read `succeeded`, `failed` or an object; raises `WireError`."""
    if isinstance(value, str):
        if value not in _VERDICTS:
            raise WireError(path, value, f"{', '.join(_VERDICTS)}, or an object with outcome, reason and message")
        return _VERDICTS[value]
    return codec.from_json(Verdict, value, path=path)


def _read_incident(value: Mapping[str, Any], path: str, identity: IncidentId, *, at: float) -> Incident:
    """Read an incident as a trace tells it: the wire's, without its id, and with what goes without saying left out."""
    for name in ("node", "local_rank"):
        if not isinstance(value.get(name, -1), int):
            raise WireError(f"{path}.{name}", value[name], "a value of type int")
    plain = {
        "cause": Cause.PROCESS.value,
        "rung": Rung.RESTART_WORKERS.value,
        "reason": "set by the trace",
        "detected_at": at,
        **{name: item for name, item in value.items() if name not in ("node", "local_rank")},
        "id": dataclasses.asdict(identity),
    }
    return codec.from_json(Incident, plain, path=path)


def _wanted(node: NodeSeen, record: JobRecord) -> bool:
    if node.attempt != record.attempt:
        return False
    return not record.slots or any((s.node, s.incarnation) == (node.node, node.incarnation) for s in record.slots)


@dataclass
class SimulatedCluster:
    """What is there, and what becomes of it by itself.

    Attributes:
        expected: how many components the job is made of.
        startup, removal: as in `trace.Step`.
        policy: of this moment; it says who makes the pods and how many there are.
        nodes, coordinators: as a backend sees them.
        due: when something starts (True) or goes (False) by itself, seconds.
        awaited: the slots of which the trace tells next; None where it tells of none any more.
    """

    expected: int
    policy: Policy
    startup: float | None = None
    removal: float | None = None
    nodes: dict[Key, NodeSeen] = field(default_factory=dict)
    coordinators: dict[Key, NodeSeen] = field(default_factory=dict)
    components: Components = field(default_factory=Components)
    due: dict[Key, tuple[float, bool]] = field(default_factory=dict)
    failure: CreateFailure = field(default_factory=lambda: CreateFailure(reason=""))
    failed_creates: tuple[CreateError, ...] = ()
    quota: bool = True
    coordinator: _SimulatedCoordinator = field(default_factory=_SimulatedCoordinator)
    awaited: frozenset[int] | None = None
    told_of: tuple[int, frozenset[int]] = (0, frozenset())

    def __post_init__(self) -> None:
        self.components = self._no_components()

    def _no_components(self) -> Components:
        # The job's own folder or ConfigMap is there before anything is created, and outlives the pods.
        return Components(expected=self.expected, deployed=0 if self.policy.wrapped else self.expected)

    def observe(self, record: JobRecord) -> Observation:
        """Return what a backend would see now."""
        nodes = tuple(self.nodes[key] for key in sorted(self.nodes))
        coordinators = tuple(self.coordinators[key] for key in sorted(self.coordinators))
        speaks = any(c.state is NodeState.RUNNING and c.incarnation == record.term for c in coordinators)
        return Observation(
            nodes=nodes,
            coordinators=coordinators,
            status=self.coordinator.report(record, nodes, min_nodes=self.policy.min_nodes, speaks=speaks),
            create_errors=self.failed_creates,
            components=self.components,
            suspend=not self.quota,
        )

    def living(self) -> frozenset[int]:
        """Return the attempts of which a pod or a coordinator still runs or may start."""
        everything = (*self.nodes.values(), *self.coordinators.values())
        return frozenset(seen.attempt for seen in everything if seen.present and seen.state in _LIVE)

    # --- what the trace tells -------------------------------------------------------------------------------------------

    def apply(self, step: Step, record: JobRecord, path: str) -> None:
        """Apply a step of the trace; `record` says which attempt and incarnations are wanted."""
        self.failed_creates = ()
        self.failure = step.failure or self.failure
        self.quota = self.quota if step.quota is None else step.quota
        self.startup = self.startup if step.startup is None else step.startup
        self.removal = self.removal if step.removal is None else step.removal
        if step.gone:
            self.nodes, self.coordinators, self.due = {}, {}, {}
            self.components = self._no_components()
        self._tell_components(step)
        if step.coordinator is not None:
            told = step.coordinator_pod
            seen = None if told is None else _seen(told, -1, record)
            self.coordinators = {} if seen is None else {(seen.attempt, -1, seen.incarnation): seen}
        if step.pods is not None:
            self._tell_pods(step.pod_list or (), record)
        self.coordinator.apply(step, record, path)

    def _tell_components(self, step: Step) -> None:
        if step.component is not None:
            lacks = 1 if step.component in ("missing", "deleting") else 0
            self.components = Components(
                expected=self.expected,
                deployed=self.expected - lacks,
                failed=1 if step.component == "failed" else 0,
                deleting=1 if step.component == "deleting" else 0,
            )
        if step.components is not None:
            self.components = dataclasses.replace(self.components, **step.components)

    def _tell_pods(self, told: tuple[Pod | None, ...], record: JobRecord) -> None:
        before, self.nodes = self.nodes, {}
        for place, pod in enumerate(told):
            if pod is None:
                continue
            node = place if pod.node is None else pod.node
            if pod.state is None:
                self.nodes.update({key: seen for key, seen in before.items() if key[1] == node})
                continue
            seen = _seen(pod, node, record)
            self.nodes[seen.attempt, seen.node, seen.incarnation] = seen
        self.due = {key: due for key, due in self.due.items() if self.nodes.get(key) == before.get(key)}
        self.told_of = (record.attempt, frozenset(seen.node for seen in self.nodes.values()))

    # --- what the supervisor asks ---------------------------------------------------------------------------------------

    def act(self, actions: tuple[Action, ...], record: JobRecord, now: float) -> None:
        """Do a turn's actions, as far as the trace lets them be done."""
        self.failed_creates = ()
        for action in actions:
            if isinstance(action, (CreateNode, CreateCoordinator, CreateComponents)):
                self._create(action, record, now)
            elif isinstance(action, RemoveNode):
                self._remove((action.attempt, action.node, action.incarnation), record, now, force=action.force)
            elif isinstance(action, RemoveCoordinator):
                self.coordinators.pop((action.attempt, -1, action.term), None)
            elif isinstance(action, RemoveComponents):
                self._remove_components(record, now, force=action.force)

    def _create(self, action: CreateNode | CreateCoordinator | CreateComponents, record: JobRecord, now: float) -> None:
        node = action.node if isinstance(action, CreateNode) else -1
        failure = self.failure
        if failure.reason and (not failure.nodes or node in failure.nodes):
            error = CreateError(attempt=action.attempt, node=node, reason=failure.reason, fatal=failure.fatal)
            self.failed_creates = (*self.failed_creates, error)
        elif isinstance(action, CreateComponents):
            self._create_components(action.attempt, record, now)
        elif isinstance(action, CreateCoordinator):
            key = (action.attempt, -1, action.term)
            self.coordinators.setdefault(key, _created(key, NodeState.RUNNING))
        elif not self._withheld(action):
            self._create_node((action.attempt, node, action.incarnation), now)

    def _withheld(self, action: CreateNode) -> bool:
        """The trace tells of pods and leaves this slot out: nothing was created there yet, though it was asked for."""
        if any((seen.attempt, seen.node) == (action.attempt, action.node) for seen in self.nodes.values()):
            return False
        attempt, told = self.told_of
        if attempt == action.attempt:
            return action.incarnation == 1 and action.node not in told
        return self.awaited is not None and action.node not in self.awaited

    def _create_node(self, key: Key, now: float) -> None:
        if key not in self.nodes:
            # Of the one before nothing is left to be seen, unless something of it is still there.
            self.nodes = {k: seen for k, seen in self.nodes.items() if k[:2] != key[:2] or seen.present}
            self.nodes[key] = _created(key, NodeState.STARTING)
            if self.startup is not None:
                self.due[key] = (now + self.startup, True)

    def _create_components(self, attempt: int, record: JobRecord, now: float) -> None:
        self.components = Components(expected=self.expected, deployed=self.expected)
        if self.startup is not None:
            for node in range(self.policy.max_nodes):
                self._create_node((attempt, node, 1), now)

    def _remove(self, key: Key, record: JobRecord, now: float, *, force: bool) -> None:
        seen = self.nodes.get(key)
        if seen is None:
            return
        wanted = not record.slots or any((record.attempt, slot.node, slot.incarnation) == key for slot in record.slots)
        if not wanted or (force and self.removal is not None):
            del self.nodes[key]
            self.due.pop(key, None)
            return
        self.nodes[key] = dataclasses.replace(seen, deleting=True)
        self._goes(key, now)

    def _remove_components(self, record: JobRecord, now: float, *, force: bool) -> None:
        there = self.components.deployed + self.components.deleting
        self.components = dataclasses.replace(self.components, deployed=0, deleting=there)
        if self.removal is None:
            return
        if force:
            self.components = self._no_components()
        for key in tuple(self.nodes):
            self._remove(key, record, now, force=force)
        self._goes(_COMPONENTS, now)

    def _goes(self, key: Key, now: float) -> None:
        """Let something go by itself, unless it does so already."""
        starts = key in self.due and self.due[key][1]
        if self.removal is not None and (starts or key not in self.due):
            self.due[key] = (now + self.removal, False)

    # --- what happens by itself -----------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When something happens by itself next; None when nothing does."""
        return min((at for at, _ in self.due.values()), default=None)

    def pass_time(self, now: float) -> None:
        """Let happen what happens by itself until `now`."""
        for key, (at, starts) in tuple(self.due.items()):
            if at > now:
                continue
            del self.due[key]
            if key == _COMPONENTS:
                self.components = self._no_components()
            elif not starts:
                self.nodes.pop(key, None)
            elif key in self.nodes:
                self.nodes[key] = dataclasses.replace(self.nodes[key], state=NodeState.RUNNING)


def _created(key: Key, state: NodeState) -> NodeSeen:
    attempt, node, incarnation = key
    return NodeSeen(attempt=attempt, node=node, incarnation=incarnation, state=state, present=True, host=_host(node))


def _seen(pod: Pod, node: int, record: JobRecord) -> NodeSeen:
    slots = {slot.node: slot.incarnation for slot in record.slots}
    wanted = record.term if node < 0 else slots.get(node, 1)
    # Everything that both have in common is called alike; of the coordinator `=` is a running one.
    state = NodeState.RUNNING if pod.state is None else pod.state
    same = {f.name: getattr(pod, f.name) for f in dataclasses.fields(pod) if f.name not in _DERIVED}
    return NodeSeen(
        attempt=record.attempt if pod.attempt is None else pod.attempt,
        node=node,
        incarnation=wanted if pod.incarnation is None else pod.incarnation,
        state=state,
        present=state is not NodeState.LOST if pod.present is None else pod.present,
        host=_host(node) if pod.host is None else pod.host,
        **same,
    )


_DERIVED = frozenset({"attempt", "node", "incarnation", "state", "present", "host"})


def _host(node: int) -> str:
    return "host-coordinator" if node < 0 else f"host-{node}"
