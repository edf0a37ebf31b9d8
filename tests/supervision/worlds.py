"""A small world that does what the supervisor asks, so that tests read: policy, trace -> phases."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from rallypoint.supervision.actions import Action, CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import Decision, reconcile
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit
from rallypoint.wire.status import JobState, JobStatus, Member, Outcome, Verdict

Key = tuple[int, int, int]


def submitted(owner: str = "cli") -> JobRecord:
    """Return the record of a job submitted at time 0."""
    return JobRecord.new(name="digits", uid="u1", digest="d1", owner=owner, now=0.0)


@dataclass
class World:
    """Nodes and coordinators by (attempt, slot or -1, incarnation or term); what is asked for happens at once unless `deaf`."""

    policy: Policy
    record: JobRecord = field(default_factory=submitted)
    seen: dict[Key, NodeSeen] = field(default_factory=dict)
    status: JobStatus | None = None
    deaf: bool = False
    now: float = 0.0
    purged: bool = False
    actions: tuple[Action, ...] = ()

    def turn(self, now: float) -> Decision:
        """Make one turn at `now`: observe, reconcile, save (through JSON), act."""
        self.now = now
        nodes = tuple(n for n in self.seen.values() if n.node >= 0)
        coordinators = tuple(n for n in self.seen.values() if n.node < 0)
        seen = Observation(nodes=nodes, coordinators=coordinators, status=self.status)
        decision = reconcile(self.record, seen, self.policy, now)
        self.record = JobRecord.from_json(decision.record.to_json())
        assert self.record == decision.record
        self.actions = decision.actions
        for action in decision.actions:
            self.act(action)
        return decision

    def settle(self, now: float) -> Decision:
        """Make turns at `now` until nothing changes any more."""
        decision = self.turn(now)
        for _ in range(20):
            before = (self.record, dict(self.seen))
            decision = self.turn(now)
            if (self.record, dict(self.seen)) == before:
                return decision
        raise AssertionError("the supervisor does not come to rest")

    def act(self, action: Action) -> None:
        """Do what a perfect backend does; a deaf one does not remove anything."""
        if isinstance(action, CreateNode):
            self._create((action.attempt, action.node, action.incarnation))
        elif isinstance(action, CreateCoordinator):
            self._create((action.attempt, -1, action.term))
        elif isinstance(action, Purge):
            self.purged = True
        elif isinstance(action, RemoveNode):
            self._remove((action.attempt, action.node, action.incarnation), force=action.force)
        elif isinstance(action, RemoveCoordinator):
            self._remove((action.attempt, -1, action.term), force=action.force)

    def _create(self, key: Key) -> None:
        attempt, node, incarnation = key
        seen = NodeSeen(attempt=attempt, node=node, incarnation=incarnation, state=NodeState.RUNNING, present=True, host="here")
        self.seen.setdefault(key, seen)

    def _remove(self, key: Key, *, force: bool) -> None:
        if key in self.seen and (force or not self.deaf):
            self.ends(key, state=NodeState.FAILED, exit_code=143)

    def ends(self, key: Key, *, state: NodeState = NodeState.FAILED, exit_code: int | None = 1, reason: str = "") -> None:
        """Let a node or coordinator end."""
        self.seen[key] = dataclasses.replace(self.seen[key], state=state, exit_code=exit_code, present=False, reason=reason)

    def node(self, slot: int) -> Key:
        """Return the key of a slot's wanted node."""
        wanted = next(s for s in self.record.slots if s.node == slot)
        return (self.record.attempt, slot, wanted.incarnation)

    def tells(self, state: JobState = JobState.RUNNING, *, verdict: Verdict | None = None, nodes: int = 2) -> None:
        """Let the coordinator of the current attempt and term speak."""
        world = tuple(
            Member(node=s.node, incarnation=s.incarnation, agent=f"a{s.node}", host="here", local_world_size=1)
            for s in self.record.slots[:nodes]
        )
        self.status = JobStatus(
            job="digits",
            uid="u1",
            fence=Fence(attempt=self.record.attempt, term=self.record.term, round=1),
            state=state,
            world=world,
            verdict=verdict,
        )

    def succeeds(self) -> None:
        """Let the coordinator tell success."""
        self.tells(JobState.SUCCEEDED, verdict=Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="all ended well"))

    def fails(self, message: str = "rank 1 exited with code 1") -> None:
        """Let the coordinator tell that the workers failed for good."""
        culprit = Culprit(node=0, host="here", rank=1, exit_code=1)
        verdict = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message=message, culprit=culprit)
        self.tells(JobState.FAILED, verdict=verdict)


def running(policy: Policy, now: float = 10.0) -> World:
    """Return a job whose first attempt trains since `now`."""
    world = World(policy=policy)
    world.settle(0.0)
    world.tells()
    world.settle(now)
    return world


def phase(world: World) -> Phase:
    """Return where the job stands."""
    return world.record.phase
