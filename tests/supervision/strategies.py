"""Random policies, and a small sea of pods in which a job may sink: everything that can happen to one, by number."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from dataclasses import dataclass, field

from hypothesis import strategies as st

from rallypoint.supervision.actions import (
    Action,
    CreateComponents,
    CreateCoordinator,
    CreateNode,
    Purge,
    RemoveComponents,
    RemoveCoordinator,
    RemoveNode,
)
from rallypoint.supervision.observation import Components, CreateError, NodeSeen, NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import Decision, reconcile
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, FaultKind, Incident, IncidentId, Rung
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Profile, Refill, Scheduling
from rallypoint.wire.status import JobState, JobStatus, Member, Outcome, Progress, Verdict
from tests.supervision.invariants import broken

__all__ = ["COSTLY", "FREE_EVENTS", "MOST_PODS", "PAUSES", "Sea", "fates", "policies", "read", "traces"]

MOST_PODS = 8

Key = tuple[int, int, int]

#: What is there of wrapped components before they are made, and after they went.
NOTHING = Components(deployed=0)

#: Seconds between two events. 120 and more are a gap in time.
PAUSES = (0.0, 0.0, 1.0, 5.0, 30.0, 60.0, 119.0, 10_000.0)

#: What may happen: to a node (`which` chooses one), to the coordinator, to the job.
COSTLY = (
    "node lost",
    "node failed",
    "node failed for good",
    "node evicted",
    "node deleted",
    "job fails",
    "coordinator tells",
    "coordinator silent",
)
FREE_EVENTS = (
    "nothing",
    "nothing",
    "nodes start",
    "nodes start",
    "node starts",
    "round runs",
    "round runs",
    "round forms",
    "new step",
    "new checkpoint",
    "node preempted",
    "host flagged",
    "hosts are well",
    "hosts are of a group",
    "host out of reach",
    "host is back",
    "node gated",
    "node is let in",
    "coordinator lost",
    "suspend",
    "resume",
    "resized",
    "renewed",
    "queue suspends",
    "queue resumes",
    "another supervisor",
    "nobody obeys",
    "everybody obeys",
    "clock back",
    "stale word",
)
ENDS = (
    "node succeeds",
    "job succeeds",
    "fail now",
    "delete",
    "component fails",
    "component gone",
    "refused",
    "refused for good",
)
EVENTS = COSTLY * 2 + FREE_EVENTS * 2 + ENDS

_SPACE = len(EVENTS) * MOST_PODS * len(PAUSES)


def traces(most: int = 30) -> st.SearchStrategy[list[int]]:
    """Draw what happens, a number for each step (see `read`): one draw a step is what makes ten thousand traces affordable."""
    return st.lists(st.integers(0, _SPACE - 1), max_size=most)


def read(number: int, events: tuple[str, ...] = EVENTS) -> tuple[str, int, float]:
    """Return the event, which node it strikes, and the pause before it."""
    number, which = divmod(number, MOST_PODS)
    number, pause = divmod(number, len(PAUSES))
    return events[number % len(events)], which, PAUSES[pause]


def fates(stories: int) -> str:
    """Return a name of all that is decided in so many stories, always the same ones."""
    chance, told = random.Random(1), hashlib.sha256()
    for _ in range(stories):
        most = chance.randint(1, MOST_PODS)
        sea = Sea(policy=Policy(min_nodes=chance.randint(1, most), max_nodes=most))
        for _ in range(30):
            event, which, pause = read(chance.randrange(_SPACE))
            sea.now += pause
            sea.happen(event, which)
            sea.turn()
            assert sea.decision is not None
            told.update(codec.dumps(sea.decision).encode())
    return told.hexdigest()


graces = st.sampled_from([0.0, 1.0, 5.0, 60.0, 300.0])
refills = st.sampled_from([Refill(), Refill(), Refill(window=60.0), Refill(healthy_for=30.0), Refill(on_checkpoint=True)])


def schedulings() -> st.SearchStrategy[Scheduling]:
    """Draw MindCluster's settings."""
    return st.builds(
        Scheduling,
        fault_scheduling=st.sampled_from(["grace", "force", "off"]),
        pod_rescheduling=st.booleans(),
        process_recover=st.sampled_from(["on", "pause", "off"]),
        recover_strategy=st.sampled_from([(), ("recover",), ("elastic-training",), ("recover", "dump"), ("dump",)]),
        fault_retry_times=st.integers(0, 3),
        backoff_limit=st.sampled_from([0, 0, 1, 3]),
        grace_over_time=graces,
        pending_rounds=st.integers(1, 12),
        never_upgrade=st.booleans(),
    )


@st.composite
def policies(draw: st.DrawFn, profile: Profile = Profile.LADDER, *, wrapped: bool = False) -> Policy:
    """Draw any policy of a profile for up to eight pods."""
    most = draw(st.integers(1, MOST_PODS))
    fixed = profile is not Profile.LADDER
    scheduling = draw(schedulings()) if profile is Profile.MINDCLUSTER else None
    return Policy(
        profile=profile,
        wrapped=wrapped,
        min_nodes=most if fixed else draw(st.integers(1, most)),
        max_nodes=most,
        retry_limit=draw(st.integers(0, 3)),
        node_replacements=0 if profile is Profile.APPWRAPPER else draw(st.integers(0, 3)),
        replace_delay=draw(graces),
        admission_grace=draw(graces),
        warmup_grace=draw(graces),
        failure_grace=draw(graces),
        retry_pause=draw(graces),
        forceful_deletion_grace=draw(graces),
        deletion_on_failure_grace=draw(st.sampled_from([0.0, 0.0, 60.0])),
        success_ttl=draw(st.sampled_from([60.0, 604800.0])),
        terminal_exit_codes=draw(st.sampled_from([(), (3,)])),
        retryable_exit_codes=draw(st.sampled_from([(), (), (1, 137)])),
        pending_timeout=draw(graces),
        pending_fail_strategy=draw(st.sampled_from([-1, 0, 1, 2])),
        node_refill=draw(refills),
        reset_refill=draw(refills),
        no_progress_limit=draw(st.sampled_from([0, 0, 2, 3])),
        scheduling=scheduling,
        node_group="" if fixed or wrapped else draw(st.sampled_from(["", "rack"])),
        node_group_timeout=draw(graces),
    )


@dataclass
class Sea:
    """Pods and coordinators by (attempt, slot or -1, incarnation or term), and whoever supervises them."""

    policy: Policy
    record: JobRecord = field(
        default_factory=lambda: JobRecord.new(name="digits", uid="u1", digest="d1", owner="cli", now=1000.0)
    )
    pods: dict[Key, NodeSeen] = field(default_factory=dict)
    status: JobStatus | None = None
    errors: tuple[CreateError, ...] = ()
    refused: bool | None = None
    components: Components = NOTHING
    gone: bool = False
    queue: bool = False
    deaf: bool = False
    purged: bool = False
    now: float = 1000.0
    step: int = 0
    checkpoint: str = ""
    decision: Decision | None = None

    def observe(self) -> Observation:
        """Return what a supervisor sees."""
        return Observation(
            nodes=tuple(p for p in self.pods.values() if p.node >= 0),
            coordinators=tuple(p for p in self.pods.values() if p.node < 0),
            status=self.status,
            create_errors=self.errors,
            components=self.components if self.policy.wrapped else Components(deployed=0 if self.gone else 1),
            suspend=self.queue,
        )

    def turn(self) -> tuple[str, ...]:
        """Make one turn: observe, decide, save, act; return what it broke."""
        seen, before = self.observe(), self.record
        decision = reconcile(before, seen, self.policy, self.now)
        found = broken(before, seen, self.policy, self.now, decision)
        self.record, self.decision, self.errors = decision.record, decision, ()
        for action in decision.actions:
            self.act(action)
        return found

    # --- What is asked of it --------------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Do what a backend does, if it is not deaf."""
        if isinstance(action, CreateNode):
            self._create((action.attempt, action.node, action.incarnation))
        elif isinstance(action, CreateCoordinator):
            self._create((action.attempt, -1, action.term))
        elif isinstance(action, RemoveNode):
            self._remove((action.attempt, action.node, action.incarnation), force=action.force)
        elif isinstance(action, RemoveCoordinator):
            self._remove((action.attempt, -1, action.term), force=action.force)
        elif isinstance(action, CreateComponents):
            self._deploy(action.attempt)
        elif isinstance(action, RemoveComponents):
            self._undeploy(force=action.force)
        elif isinstance(action, Purge):
            self.purged = True

    def _create(self, key: Key) -> None:
        if self.refused is not None:
            self.errors += (CreateError(attempt=key[0], node=key[1], reason="no room", fatal=self.refused),)
            return
        state = NodeState.STARTING if key[1] >= 0 else NodeState.RUNNING
        self.pods.setdefault(key, NodeSeen(attempt=key[0], node=key[1], incarnation=key[2], state=state, present=True))

    def _remove(self, key: Key, *, force: bool) -> None:
        if key in self.pods and (force or not self.deaf):
            self.ends(key, NodeState.FAILED, exit_code=143)
            if self.policy.wrapped:
                del self.pods[key]

    def _deploy(self, attempt: int) -> None:
        if self.refused is not None:
            self.errors += (CreateError(attempt=attempt, node=-1, reason="no such kind", fatal=self.refused),)
            return
        self.components = Components()
        for node in range(self.policy.max_nodes):
            key = (attempt, node, 1)
            self.pods[key] = NodeSeen(attempt=attempt, node=node, incarnation=1, state=NodeState.STARTING, present=True)

    def _undeploy(self, *, force: bool) -> None:
        if force or not self.deaf:
            self.components, self.pods = NOTHING, {}

    # --- What happens to it ---------------------------------------------------------------------------------------------

    def ends(self, key: Key, state: NodeState, *, exit_code: int | None = None, kind: FaultKind | None = None) -> None:
        """Let a pod end. Where its controller keeps it, it is there until its component goes."""
        kept = self.policy.wrapped
        self.pods[key] = dataclasses.replace(self.pods[key], state=state, present=kept, exit_code=exit_code, kind=kind)

    def happen(self, event: str, which: int) -> None:
        """Let one thing happen."""
        living = [k for k, p in sorted(self.pods.items()) if not p.ended and k[1] >= 0 and k[0] == self.record.attempt]
        if event in _TO_A_NODE:
            if living:
                _TO_A_NODE[event](self, living[which % len(living)])
            return
        if event in ("nodes start", "node starts"):
            starting = [k for k in living if self.pods[k].state is NodeState.STARTING and not self.pods[k].gated]
            for key in starting if event == "nodes start" else starting[:1]:
                self.pods[key] = dataclasses.replace(self.pods[key], state=NodeState.RUNNING, host=f"host-{key[1]}")
        elif event == "renewed":
            self.record = dataclasses.replace(self.record, renew=not self.record.finished)
        elif event == "resized":
            self.resized(which + 1)
        elif event in _TO_THE_JOB:
            _TO_THE_JOB[event](self)

    def resized(self, most: int) -> None:
        """Let somebody ask for so many nodes, where that is allowed."""
        if self.policy.profile is Profile.LADDER and not self.policy.wrapped:
            size = Size(min_nodes=min(self.policy.min_nodes, most), max_nodes=most)
            self.record = dataclasses.replace(self.record, size=size)

    def everyone(self, **changes: object) -> None:
        """Change something of every pod that lives."""
        self.pods = {k: p if p.ended else dataclasses.replace(p, **changes) for k, p in self.pods.items()}  # type: ignore[arg-type]

    def tells(self, state: JobState, verdict: Verdict | None = None, incidents: tuple[Incident, ...] = ()) -> None:
        """Let the coordinator speak, if there is one."""
        record = self.record
        if self.policy.wrapped or (record.attempt, -1, record.term) not in self.pods:
            return
        known = () if self.status is None or self.status.fence.attempt != record.attempt else self.status.incidents
        world = tuple(
            Member(node=k[1], incarnation=k[2], agent=f"a{k}", host="h", local_world_size=1)
            for k, p in self.pods.items()
            if k[1] >= 0 and p.state is NodeState.RUNNING
        )
        self.status = JobStatus(
            job="digits",
            uid="u1",
            fence=Fence(attempt=record.attempt, term=record.term, round=1),
            state=state,
            world=world,
            progress=Progress(step=self.step or None, checkpoint=self.checkpoint),
            incidents=(*known, *(i for i in incidents if i.id not in {k.id for k in known})),
            verdict=verdict,
        )

    def fails(self, reason: str) -> None:
        """Let the coordinator give the attempt up."""
        self.tells(JobState.FAILED, Verdict(outcome=Outcome.FAILED, reason=reason, message="rank 1 exited with code 1"))

    def advances(self, *, checkpoint: bool = False) -> None:
        """Let the training get on."""
        self.step += 1
        if checkpoint:
            self.checkpoint = f"/checkpoints/{self.step}"
        self.tells(JobState.RUNNING)

    def loses_coordinator(self, *, silent: bool) -> None:
        """Let the coordinator end, after a word of its own or before: the next one would end alike, and that is no accident."""
        if not silent:
            self.tells(JobState.FORMING)
        key = (self.record.attempt, -1, self.record.term)
        if key in self.pods and not self.pods[key].ended:
            self.ends(key, NodeState.LOST)

    def hears_of(self, key: Key) -> None:
        """Let the coordinator tell that a node is lost; the pod may run on."""
        name = IncidentId(attempt=key[0], round=0, node=key[1], sequence=key[2])
        told = Incident(id=name, cause=Cause.NODE, rung=Rung.RECOVER, reason="said nothing", detected_at=self.now)
        self.tells(JobState.FORMING, incidents=(told,))

    def change(self, **changes: object) -> None:
        """Let somebody change the record by compare-and-swap."""
        self.record = dataclasses.replace(self.record, **changes)  # type: ignore[arg-type]


def _set(sea: Sea, **changes: object) -> None:
    for name, value in changes.items():
        setattr(sea, name, value)


def _pod(sea: Sea, key: Key, **changes: object) -> None:
    sea.pods[key] = dataclasses.replace(sea.pods[key], **changes)  # type: ignore[arg-type]


def _gate(sea: Sea, key: Key) -> None:
    if sea.pods[key].state is NodeState.STARTING:
        _pod(sea, key, gated=True)


def _reach(sea: Sea, key: Key) -> None:
    if sea.pods[key].state is NodeState.UNKNOWN:
        _pod(sea, key, state=NodeState.RUNNING)


_TO_A_NODE = {
    "node lost": lambda sea, key: sea.ends(key, NodeState.LOST),
    "node failed": lambda sea, key: sea.ends(key, NodeState.FAILED, exit_code=1),
    "node failed for good": lambda sea, key: sea.ends(key, NodeState.FAILED, exit_code=3),
    "node evicted": lambda sea, key: sea.ends(key, NodeState.FAILED, kind=FaultKind.EVICTED),
    "node preempted": lambda sea, key: sea.ends(key, NodeState.FAILED, kind=FaultKind.PREEMPTED),
    "node deleted": lambda sea, key: sea.pods.pop(key),
    "node succeeds": lambda sea, key: sea.ends(key, NodeState.SUCCEEDED, exit_code=0),
    "host flagged": lambda sea, key: _pod(sea, key, flagged="gpuhealth=EVICT"),
    "host out of reach": lambda sea, key: _pod(sea, key, state=NodeState.UNKNOWN),
    "host is back": _reach,
    "node gated": _gate,
    "node is let in": lambda sea, key: _pod(sea, key, gated=False),
    "coordinator tells": lambda sea, key: sea.hears_of(key),
}
_TO_THE_JOB = {
    "round runs": lambda sea: sea.tells(JobState.RUNNING),
    "round forms": lambda sea: sea.tells(JobState.FORMING),
    "new step": lambda sea: sea.advances(),
    "new checkpoint": lambda sea: sea.advances(checkpoint=True),
    "hosts are well": lambda sea: sea.everyone(flagged=""),
    "hosts are of a group": lambda sea: sea.everyone(group="a"),
    "coordinator lost": lambda sea: sea.loses_coordinator(silent=False),
    "coordinator silent": lambda sea: sea.loses_coordinator(silent=True),
    "suspend": lambda sea: sea.change(suspend=True),
    "resume": lambda sea: sea.change(suspend=False),
    "queue suspends": lambda sea: _set(sea, queue=True),
    "queue resumes": lambda sea: _set(sea, queue=False),
    "another supervisor": lambda sea: sea.change(holder=Holder(id=f"h{sea.now}", name="another")),
    "nobody obeys": lambda sea: _set(sea, deaf=True),
    "everybody obeys": lambda sea: _set(sea, deaf=False, refused=None),
    "clock back": lambda sea: _set(sea, now=sea.now - 100.0),
    "stale word": lambda sea: _set(sea, status=None),
    "job fails": lambda sea: sea.fails("WorkersFailed"),
    "job succeeds": lambda sea: sea.tells(
        JobState.SUCCEEDED, Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="all ended well")
    ),
    "fail now": lambda sea: sea.fails("FailNow"),
    "delete": lambda sea: sea.change(deletion=True),
    "component fails": lambda sea: _set(sea, components=dataclasses.replace(sea.components, failed=sea.components.deployed)),
    "component gone": lambda sea: _set(sea, components=NOTHING, gone=True),
    "refused": lambda sea: _set(sea, refused=False),
    "refused for good": lambda sea: _set(sea, refused=True),
}
