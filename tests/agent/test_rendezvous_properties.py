"""What holds for every order of reports, losses, returns and lost answers: a small cluster against the pure coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings
from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit
from rallypoint.wire.messages import AgentReport, AgentState, Assignment, Regroup, Stop
from rallypoint.wire.status import JobStatus, Outcome
from tests.scale import sized


@dataclass
class Agent:
    """A node as it really is; `training` is the assignment whose workers run."""

    node: int
    incarnation: int = 1
    state: AgentState = AgentState.WAITING
    round: int = 0
    training: Assignment | None = None
    failures: tuple[Culprit, ...] = ()
    alive: bool = True
    stopped: bool = False

    @property
    def name(self) -> str:
        return f"agent-{self.node}.{self.incarnation}"


@dataclass
class Cluster:
    """Agents, a coordinator, and a network that may lose answers."""

    limits: Settings
    agents: dict[int, Agent] = field(default_factory=dict)
    term: int = 1
    now: float = 0.0

    def __post_init__(self) -> None:
        self.state = self.coordinator(None)

    def coordinator(self, previous: JobStatus | None) -> rendezvous.State:
        return rendezvous.new(self.limits, job="j", uid="u", attempt=1, term=self.term, now=self.now, previous=previous)

    def say(self, agent: Agent, *, answered: bool = True) -> None:
        """Let an agent report, and take the answer unless the network loses it."""
        report = AgentReport(
            job="j",
            fence=Fence(attempt=1, term=1, round=agent.round),
            node=agent.node,
            incarnation=agent.incarnation,
            agent=agent.name,
            host="h",
            local_world_size=1,
            store=f"h:{agent.node}",
            state=agent.state,
            round=agent.round,
            failures=agent.failures,
        )
        refused = rendezvous.refusal(self.state, report)
        if refused is not None:
            agent.alive, agent.training = not refused.stale, None
            return
        self.state = rendezvous.receive(self.state, report, self.now)
        self.check()
        reply = rendezvous.answer(self.state, agent.name)
        if not answered:
            return
        if isinstance(reply, Assignment):
            agent.training, agent.state, agent.round, agent.failures = reply, AgentState.RUNNING, reply.fence.round, ()
        elif isinstance(reply, Regroup):
            agent.training, agent.state = None, AgentState.WAITING
        elif isinstance(reply, Stop):
            agent.training, agent.stopped = None, True

    def happen(self, event: str, node: int) -> None:
        agent = self.agents.get(node)
        if event in ("start", "replace"):
            if agent is None or not agent.alive:
                self.agents[node] = agent = Agent(node=node, incarnation=1 + (agent.incarnation if agent else 0))
                self.say(agent)
        elif event == "coordinator dies":
            published = codec.loads(JobStatus, codec.dumps(rendezvous.status(self.state, self.now)))
            self.term += 1
            self.state = self.coordinator(published)
        elif event == "time":
            self.now += 7.0
            self.state = rendezvous.tick(self.state, self.now)
        elif agent is not None and agent.alive and not agent.stopped:
            self.agent_event(event, agent)
        self.check()

    def agent_event(self, event: str, agent: Agent) -> None:
        if event == "report":
            self.say(agent)
        elif event == "lost answer":
            self.say(agent, answered=False)
        elif event == "worker dies" and agent.training is not None:
            agent.failures = (Culprit(node=agent.node, rank=agent.training.first_rank, local_rank=0, signal=9),)
            agent.state = AgentState.FAILED
            self.say(agent)
        elif event == "workers end" and agent.training is not None and agent.state is AgentState.RUNNING:
            agent.state, agent.training = AgentState.DONE, None
            self.say(agent)
        elif event == "node dies":
            agent.alive, agent.training = False, None
            self.state = rendezvous.disconnected(self.state, agent.name, self.now)

    def check(self) -> None:
        """Assert what holds at every moment."""
        state = self.state
        if state.fence.round:
            sizes = len(state.world)
            assert self.limits.min_nodes <= sizes <= self.limits.max_nodes
            assert sizes % self.limits.node_unit == 0
            assert [m.group_rank for m in state.world] == list(range(sizes))
            assert len({m.node for m in state.world}) == sizes
        spent = {i.id for i in state.incidents if i.cause is Cause.PROCESS}
        assert len(spent) <= self.limits.max_restarts + 1
        if len(spent) > self.limits.max_restarts:
            assert state.verdict is not None
        rounds = [a.training.fence.round for a in self.agents.values() if a.alive and a.training is not None]
        complete = [r for r in set(rounds) if self.whole(r)]
        assert len(complete) <= 1, "two whole worlds train at once"

    def whole(self, round_: int) -> bool:
        """Return whether every member that the round was closed with trains in it now."""
        training = [a for a in self.agents.values() if a.alive and a.training and a.training.fence.round == round_]
        return bool(training) and len(training) == training[0].training.group_world_size  # type: ignore[union-attr]


limits = st.sampled_from(
    [
        Settings(fence_timeout=30.0, stop_grace=5.0, min_nodes=1, max_nodes=1),
        Settings(fence_timeout=30.0, stop_grace=5.0, min_nodes=2, max_nodes=2, max_restarts=1),
        Settings(fence_timeout=30.0, stop_grace=5.0, min_nodes=1, max_nodes=3, last_call=5.0),
        Settings(fence_timeout=30.0, stop_grace=5.0, min_nodes=2, max_nodes=4, node_unit=2, last_call=5.0, max_restarts=2),
    ]
)
EVENTS = ("start", "report", "report", "lost answer", "worker dies", "workers end", "node dies", "replace", "time")
traces = st.lists(st.tuples(st.sampled_from((*EVENTS, "coordinator dies")), st.integers(0, 3)), max_size=60)


@settings(max_examples=sized(400, 120))
@given(limits, traces)
def test_one_world_at_a_time(settings_: Settings, trace: list[tuple[str, int]]) -> None:
    """Bounds, units, ranks and budgets hold at every moment, and never do two whole worlds train."""
    cluster = Cluster(limits=settings_)
    for event, node in trace:
        cluster.happen(event, node)


@settings(max_examples=sized(200, 60))
@given(limits, traces)
def test_a_healthy_cluster_always_comes_to_an_end(settings_: Settings, trace: list[tuple[str, int]]) -> None:
    """Once nothing breaks any more, every agent is told a verdict: nobody waits for ever."""
    cluster = Cluster(limits=settings_)
    for event, node in trace:
        cluster.happen(event, node)
    for node in range(settings_.max_nodes):
        cluster.happen("replace", node)
    for _ in range(200):
        for agent in list(cluster.agents.values()):
            if agent.alive and not agent.stopped:
                cluster.say(agent)
        cluster.now += 2.0
        cluster.state = rendezvous.tick(cluster.state, cluster.now)
        in_round = [a for a in cluster.agents.values() if a.alive and a.round == cluster.state.fence.round]
        if all(a.training is not None or a.state is AgentState.DONE for a in in_round):
            for agent in in_round:
                cluster.happen("workers end", agent.node)
    verdict = cluster.state.verdict
    assert verdict is not None
    assert verdict.outcome is Outcome.SUCCEEDED or verdict.reason in ("WorkersFailed", "RendezvousTimeout")
    assert all(agent.stopped for agent in cluster.agents.values() if agent.alive)
