"""What holds for every policy and every sequence of events."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.supervision.actions import CreateCoordinator, CreateNode
from rallypoint.supervision.observation import NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import TRANSITIONS, reconcile
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobState
from tests.supervision.worlds import World

seconds = st.sampled_from([0.0, 1.0, 5.0, 60.0])


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Draw any policy of up to three nodes."""
    max_nodes = draw(st.integers(1, 3))
    return Policy(
        min_nodes=draw(st.integers(1, max_nodes)),
        max_nodes=max_nodes,
        retry_limit=draw(st.integers(0, 3)),
        node_replacements=draw(st.integers(0, 2)),
        replace_delay=draw(seconds),
        admission_grace=draw(seconds),
        warmup_grace=draw(seconds),
        failure_grace=draw(seconds),
        retry_pause=draw(seconds),
        forceful_deletion_grace=draw(seconds),
    )


EVENTS = ("nothing", "node lost", "node failed", "coordinator lost", "round runs", "round forms", "job fails", "job succeeds")
RARE = ("delete", "deaf", "hearing", "clock back", "sleep")
traces = st.lists(st.tuples(st.sampled_from(EVENTS * 3 + RARE), st.integers(0, 2), seconds), max_size=30)


def happen(world: World, event: str, which: int) -> None:
    """Let one thing happen to the world."""
    live = [key for key, node in sorted(world.seen.items()) if not node.ended]
    nodes = [key for key in live if key[1] >= 0]
    coordinators = [key for key in live if key[1] < 0]
    if event == "node lost" and nodes:
        world.ends(nodes[which % len(nodes)], state=NodeState.LOST, exit_code=None)
    elif event == "node failed" and nodes:
        world.ends(nodes[which % len(nodes)])
    elif event == "coordinator lost" and coordinators:
        world.ends(coordinators[0], state=NodeState.LOST, exit_code=None)
    elif event in ("round runs", "round forms") and world.record.attempt:
        world.tells(JobState.RUNNING if event == "round runs" else JobState.FORMING)
    elif event == "job fails" and world.record.attempt:
        world.fails()
    elif event == "job succeeds" and world.record.attempt:
        world.succeeds()
    elif event == "delete":
        world.record = dataclasses.replace(world.record, deletion=True)
    elif event in ("deaf", "hearing"):
        world.deaf = event == "deaf"


def check_turn(world: World, before: Phase, now: float) -> None:
    """Assert what holds after every single turn."""
    record, policy = world.record, world.policy
    assert reachable(before, record.phase)
    assert record.retries <= policy.retry_limit
    assert len(record.attempts) == record.attempt <= policy.retry_limit + 1
    live_attempts = {n.attempt for n in world.seen.values() if n.present}
    assert len(live_attempts) <= 1, "two attempts are alive at once"
    for action in world.actions:
        if isinstance(action, (CreateNode, CreateCoordinator)):
            assert action.attempt == record.attempt
            assert not record.finished
    if record.released or world.purged:
        assert not live_attempts
    assert all(i.cause in (Cause.NODE, Cause.COORDINATOR) for i in record.incidents)
    assert record.last_now == now


def reachable(start: Phase, end: Phase) -> bool:
    """Return whether the table leads from one phase to another."""
    seen, todo = set(), [start]
    while todo:
        phase = todo.pop()
        if phase in seen:
            continue
        seen.add(phase)
        todo.extend(TRANSITIONS[phase])
    return end in seen


@settings(max_examples=400, deadline=None)
@given(policies(), traces)
def test_whatever_happens_the_rules_hold(policy: Policy, trace: list[tuple[str, int, float]]) -> None:
    """Budgets are kept, one attempt lives at a time, nothing is created after the end, and the table is obeyed."""
    world, now = World(policy=policy), 0.0
    for event, which, pause in trace:
        now += {"clock back": -100.0, "sleep": 10_000.0}.get(event, pause)
        happen(world, event, which)
        before = world.record.phase
        decision = world.turn(now)
        check_turn(world, before, now)
        assert decision.wake_at is None or decision.wake_at >= world.record.last_now
        if decision.done and world.purged:
            return


@settings(max_examples=200, deadline=None)
@given(policies(), traces)
def test_every_job_ends_or_waits_for_a_deadline(policy: Policy, trace: list[tuple[str, int, float]]) -> None:
    """Left alone, a job that does not train comes to a finished phase by its own deadlines."""
    world, now = World(policy=policy), 0.0
    for event, which, pause in trace:
        now += pause
        happen(world, event, which)
        world.turn(now)
    world.deaf = False
    if not world.record.finished and world.record.attempt:
        world.tells(JobState.FORMING)
    for _ in range(400):
        decision = world.turn(now)
        if decision.done:
            break
        now = max(now + 1.0, decision.wake_at or 0.0)
    assert world.record.finished or world.purged
    assert not any(node.present for node in world.seen.values())


@settings(max_examples=200, deadline=None)
@given(policies(), traces)
def test_the_same_arguments_give_the_same_decision(policy: Policy, trace: list[tuple[str, int, float]]) -> None:
    """A decision depends on nothing but its arguments, and deciding twice at one moment changes nothing more."""
    world, now = World(policy=policy), 0.0
    for event, which, pause in trace:
        now += pause
        happen(world, event, which)
        seen = Observation(nodes=tuple(n for n in world.seen.values() if n.node >= 0), status=world.status)
        one = reconcile(world.record, seen, policy, now)
        assert one == reconcile(world.record, seen, policy, now)
        world.turn(now)
