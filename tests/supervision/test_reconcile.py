"""The supervisor's state machine, told as traces: what is seen at which second, and what follows."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.supervision import clocks
from rallypoint.supervision.actions import Action, CreateCoordinator, CreateNode, Purge, RemoveNode
from rallypoint.supervision.coordinators import COORDINATOR_LIMIT
from rallypoint.supervision.observation import CreateError, NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import TRANSITIONS, reconcile
from rallypoint.supervision.record import ConditionType, Phase
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobState, Outcome, Progress
from tests.supervision.worlds import World, phase, running, submitted

FIXED = Policy(min_nodes=2, max_nodes=2, node_replacements=0)
HEALING = Policy(min_nodes=2, max_nodes=2)
ELASTIC = Policy(min_nodes=1, max_nodes=2)


def test_a_submitted_job_creates_its_coordinator_and_nodes() -> None:
    """The first turn asks for everything; quota is taken; the record is already that of attempt 1."""
    decision = reconcile(submitted(), Observation(), FIXED, 0.0)
    assert decision.actions == (
        CreateCoordinator(attempt=1, term=1),
        CreateNode(attempt=1, node=0, incarnation=1),
        CreateNode(attempt=1, node=1, incarnation=1),
    )
    assert decision.record.phase is Phase.RESUMING
    assert decision.record.condition(ConditionType.QUOTA_RESERVED)


def test_actions_are_emitted_until_they_are_seen() -> None:
    """A supervisor that was killed between saving and acting is repeated by the next one."""
    first = reconcile(submitted(), Observation(), FIXED, 0.0)
    second = reconcile(first.record, Observation(), FIXED, 1.0)
    assert second.actions == first.actions
    assert second.record.attempt == 1


def test_a_job_that_goes_well() -> None:
    """Resuming, Running, ready, Succeeded; released once nothing is left."""
    world = running(FIXED)
    assert phase(world) is Phase.RUNNING
    assert world.record.condition(ConditionType.PODS_READY)
    world.succeeds()
    for slot in (0, 1):
        world.ends(world.node(slot), state=NodeState.SUCCEEDED, exit_code=0)
    world.ends((1, -1, 1), state=NodeState.SUCCEEDED, exit_code=0)
    decision = world.turn(130.0)
    assert phase(world) is Phase.SUCCEEDED
    assert decision.done
    assert world.record.released
    assert world.record.verdict is not None
    assert world.record.verdict.outcome is Outcome.SUCCEEDED
    assert not world.record.condition(ConditionType.QUOTA_RESERVED)


def test_agents_that_do_not_end_after_success_are_ended() -> None:
    """Success waits for the agents to go by themselves, but not longer than their grace."""
    world = running(FIXED)
    world.succeeds()
    decision = world.turn(100.0)
    assert decision.actions == ()
    assert decision.wake_at == 115.0
    world.turn(115.0)
    assert RemoveNode(attempt=1, node=0, incarnation=1) in world.actions
    assert world.turn(115.0).done


def test_a_failed_attempt_is_reset_and_pauses_after_everything_is_gone() -> None:
    """The retry pause starts when nothing is left, not when the failure was seen; the next attempt has the next term."""
    world = running(FIXED)
    world.deaf = True
    world.fails()
    world.turn(100.0)
    assert phase(world) is Phase.RESETTING
    assert world.record.retries == 1
    world.settle(160.0)
    assert world.record.condition(ConditionType.RESOURCES_DEPLOYED), "its nodes are still there"
    world.deaf = False
    decision = world.settle(165.0)
    assert not world.record.condition(ConditionType.RESOURCES_DEPLOYED)
    assert world.record.condition(ConditionType.QUOTA_RESERVED), "quota is kept through a reset"
    assert decision.wake_at == 255.0
    world.settle(254.0)
    assert phase(world) is Phase.RESETTING
    world.settle(255.0)
    assert (world.record.phase, world.record.attempt, world.record.term) == (Phase.RUNNING, 2, 2)


def test_retry_limit_makes_one_attempt_more() -> None:
    """N resets are N + 1 attempts; then the job fails with the last verdict and gives its quota back."""
    world = World(policy=dataclasses.replace(FIXED, retry_limit=2, retry_pause=5.0))
    now = 0.0
    for _ in range(3):
        world.settle(now)
        world.fails(f"failed at {now:g}")
        world.settle(now + 1)
        now += 10.0
    assert phase(world) is Phase.FAILED
    assert world.record.retries == 2
    assert [a.message for a in world.record.attempts] == ["failed at 0", "failed at 10", "failed at 20"]
    assert world.record.verdict is not None
    assert world.record.verdict.message == "failed at 20"
    assert world.record.verdict.culprit is not None
    assert world.record.released
    assert not world.record.condition(ConditionType.QUOTA_RESERVED)


def test_no_retries_fails_at_once() -> None:
    """With a retry limit of 0 the first failure is the last."""
    world = running(dataclasses.replace(FIXED, retry_limit=0))
    world.fails()
    world.settle(20.0)
    assert phase(world) is Phase.FAILED
    assert len(world.record.attempts) == 1


def test_a_lost_node_is_replaced_while_the_job_goes_on() -> None:
    """The pod is replaced under the next incarnation, the incident is kept, nothing else is touched."""
    world = running(HEALING)
    world.ends(world.node(1), state=NodeState.LOST, exit_code=None, reason="its shim vanished")
    world.turn(50.0)
    assert world.actions == (CreateNode(attempt=1, node=1, incarnation=2),)
    [incident] = world.record.incidents
    assert incident.cause is Cause.NODE
    assert incident.reason == "node 1 on here was lost: its shim vanished"
    assert incident.healed_at is None, "the coordinator still tells the old world"
    world.tells()
    world.settle(55.0)
    assert world.record.incidents[0].healed_at == 55.0
    assert phase(world) is Phase.RUNNING


def test_the_replacement_waits_for_its_pause() -> None:
    """`replace_delay` counts from the loss."""
    world = running(dataclasses.replace(ELASTIC, replace_delay=30.0))
    world.ends(world.node(1), exit_code=137)
    decision = world.turn(50.0)
    assert decision.actions == ()
    assert decision.wake_at == 80.0
    assert world.turn(80.0).actions == (CreateNode(attempt=1, node=1, incarnation=2),)


def test_above_min_a_job_degrades_when_a_slot_is_spent() -> None:
    """A slot whose replacements are spent stays empty; the job goes on as long as MIN nodes are left."""
    world = running(dataclasses.replace(ELASTIC, node_replacements=1))
    world.ends(world.node(1))
    world.settle(50.0)
    world.ends(world.node(1))
    world.settle(60.0)
    assert phase(world) is Phase.RUNNING
    assert world.actions == ()
    assert not world.record.condition(ConditionType.UNHEALTHY)


def test_below_min_the_failure_grace_decides() -> None:
    """Without replacements a lost node of a fixed world is tolerated for the failure grace and then resets the job."""
    world = running(FIXED)
    world.ends(world.node(1), exit_code=137, reason="killed by SIGKILL")
    decision = world.turn(100.0)
    assert decision.wake_at == 160.0
    world.turn(159.0)
    assert phase(world) is Phase.RUNNING
    world.turn(160.0)
    assert phase(world) is Phase.RESETTING
    assert world.record.attempts[0].reason == "FoundFailedPods"
    assert "node 1 on here exited with code 137: killed by SIGKILL" in world.record.attempts[0].message


def test_a_second_incident_has_a_grace_of_its_own() -> None:
    """The next attempt does not inherit the clock of the failure before it."""
    world = running(dataclasses.replace(FIXED, retry_pause=0.0))
    world.ends(world.node(1))
    world.settle(100.0)
    world.settle(160.0)
    world.settle(161.0)
    assert (world.record.phase, world.record.attempt) == (Phase.RUNNING, 2)
    world.tells()
    world.settle(162.0)
    world.ends(world.node(0))
    assert world.turn(200.0).wake_at == 260.0


def test_a_world_that_never_runs_is_reset() -> None:
    """Warm-up counts from deployment; the failure grace begins when it is over."""
    world = World(policy=FIXED)
    world.settle(0.0)
    world.tells(JobState.FORMING)
    for second in range(0, 301, 50):
        world.settle(float(second))
    assert phase(world) is Phase.RUNNING
    assert world.record.condition(ConditionType.UNHEALTHY)
    world.turn(359.0)
    assert phase(world) is Phase.RUNNING
    world.turn(360.0)
    assert phase(world) is Phase.RESETTING
    assert world.record.attempts[0].reason == "InsufficientPodsReady"
    message = world.record.attempts[0].message
    assert message == "the job was not ready within the warm-up grace period of 300 s (2 of 2 required nodes are running)"


def test_a_world_that_stops_running_gets_a_full_grace() -> None:
    """A pod lost long after warm-up has the whole grace to come back, counted from when the world stopped."""
    world = running(HEALING)
    for second in range(60, 1000, 60):
        world.settle(float(second))
    world.tells(JobState.FORMING)
    assert world.turn(1000.0).wake_at == 1300.0


def test_nodes_that_cannot_be_created_reset_after_the_admission_grace() -> None:
    """A creation that may work later is tried until the grace is over; the reason is kept."""
    error = CreateError(attempt=1, node=1, reason="no memory", fatal=False)
    record = reconcile(submitted(), Observation(create_errors=(error,)), FIXED, 0.0).record
    early = reconcile(record, Observation(create_errors=(error,)), FIXED, 59.0)
    assert early.record.phase is Phase.RESUMING
    unhealthy = reconcile(early.record, Observation(create_errors=(error,)), FIXED, 60.0)
    assert unhealthy.record.phase is Phase.RESUMING
    assert unhealthy.actions, "it is tried again"
    late = reconcile(unhealthy.record, Observation(create_errors=(error,)), FIXED, 120.0)
    assert late.record.attempts[0].reason == "CreateFailed"
    assert late.record.attempts[0].message == "no memory"


def test_waiting_for_room_is_free() -> None:
    """What a quota has no room for now is asked for again and again, and no clock is running until it is there."""
    error = CreateError(attempt=1, node=1, reason="exceeded quota", fatal=False, waits=True)
    record = reconcile(submitted(), Observation(), FIXED, 0.0).record
    for second in range(1, 2000, 100):
        decision = reconcile(record, Observation(create_errors=(error,)), FIXED, float(second))
        assert decision.record.phase is Phase.RESUMING
        assert decision.actions, "it is tried again"
        record = decision.record
    assert not record.condition(ConditionType.UNHEALTHY)
    assert clocks.spent(record, "warm-up") <= 1.0


def test_a_fatal_creation_error_is_not_retried() -> None:
    """What can never be created fails the job at once."""
    error = CreateError(attempt=1, node=0, reason="python is missing", fatal=True)
    record = reconcile(submitted(), Observation(), FIXED, 0.0).record
    decision = reconcile(record, Observation(create_errors=(error,)), FIXED, 1.0)
    assert decision.record.phase is Phase.FAILED
    assert decision.record.retries == 0
    assert decision.record.verdict is not None
    assert decision.record.verdict.message == "python is missing"


def test_a_lost_coordinator_is_replaced_by_the_next_term_for_free() -> None:
    """Nobody else is touched, no budget is spent, and the old term never comes back."""
    world = running(FIXED)
    world.ends((1, -1, 1), state=NodeState.LOST, exit_code=None)
    world.turn(50.0)
    assert world.actions == (CreateCoordinator(attempt=1, term=2),)
    assert world.record.term == 2
    assert world.record.retries == 0
    assert [i.cause for i in world.record.incidents] == [Cause.COORDINATOR]
    assert world.record.incidents[0].healed_at is None
    world.tells()
    world.turn(51.0)
    assert world.record.incidents[0].healed_at == 51.0, "the next one spoke"


def test_an_attempt_without_a_verdict_keeps_its_progress() -> None:
    """What was reported last is in the attempt and in the record, whoever ended the attempt."""
    world = running(dataclasses.replace(FIXED, retry_limit=0, failure_grace=0.0))
    assert world.status is not None
    world.status = dataclasses.replace(world.status, progress=Progress(step=5000, checkpoint="/c/5000"))
    world.ends(world.node(1))
    world.settle(20.0)
    assert phase(world) is Phase.FAILED
    assert world.record.progress.step == world.record.attempts[0].progress.step == 5000
    assert world.record.restarted(owner="again", now=30.0).progress == Progress()


def test_coordinators_that_are_always_killed_end_the_attempt() -> None:
    """They cost no budget, but not without end."""
    world = running(dataclasses.replace(FIXED, retry_limit=0))
    now = 10.0
    while phase(world) is Phase.RUNNING and now < 1000.0:
        now += 1.0
        world.ends((1, -1, world.record.term), state=NodeState.LOST, exit_code=None)
        world.turn(now)
        world.tells()
    assert phase(world) is Phase.FAILED
    assert world.record.attempts[0].reason == "CoordinatorFailed"
    assert world.record.term == COORDINATOR_LIMIT + 2


def test_coordinators_that_never_speak_fail_the_attempt() -> None:
    """Three that end without a word are not followed by a fourth; the reason of the last is told."""
    world = World(policy=dataclasses.replace(FIXED, retry_limit=0))
    world.settle(0.0)
    for term in (1, 2, 3):
        world.ends((1, -1, term), exit_code=78, reason="port 29400 is in use")
        world.settle(float(term))
    assert phase(world) is Phase.FAILED
    assert world.record.verdict is not None
    assert world.record.verdict.message.endswith("port 29400 is in use")


def test_strays_are_removed() -> None:
    """A node of an earlier attempt that shows up late is ended at once."""
    world = running(FIXED)
    stray = dataclasses.replace(world.seen[(1, 0, 1)], attempt=0)
    world.seen[(0, 0, 1)] = stray
    world.turn(20.0)
    assert world.actions == (RemoveNode(attempt=0, node=0, incarnation=1, force=True),)


def _next_actions(world: World, now: float) -> tuple[Action, ...]:
    world.turn(now)
    return world.actions


def test_leftovers_of_a_lost_node_are_removed() -> None:
    """A node that is lost while processes of it live is not gone until they are, and nobody takes its place before."""
    world = running(ELASTIC)
    key = world.node(1)
    world.seen[key] = dataclasses.replace(world.seen[key], state=NodeState.LOST, present=True)
    world.turn(20.0)
    assert world.actions == (RemoveNode(attempt=1, node=1, incarnation=1, force=True),)
    assert CreateNode(attempt=1, node=1, incarnation=2) in _next_actions(world, 21.0)


def test_what_comes_late_is_swept_away_before_the_next_attempt() -> None:
    """A node that a supervisor makes which slept through a suspension is ended, and only then the next attempt begins."""
    world = running(ELASTIC)
    world.record = dataclasses.replace(world.record, suspend=True)
    world.settle(20.0)
    assert phase(world) is Phase.SUSPENDED
    late = (1, 0, 9)
    world.act(CreateNode(attempt=1, node=0, incarnation=9))
    world.record = dataclasses.replace(world.record, suspend=False)
    world.turn(30.0)
    assert (phase(world), world.seen[late].present) == (Phase.SUSPENDED, False)
    world.turn(31.0)
    assert (world.record.attempt, world.record.condition(ConditionType.DELETING_RESOURCES)) == (2, False)


def test_deletion_is_forced_after_its_grace() -> None:
    """A node that ignores its end is ended by force strictly after the forceful grace, and only then is the job gone."""
    world = running(dataclasses.replace(FIXED, forceful_deletion_grace=30.0))
    world.deaf = True
    world.record = dataclasses.replace(world.record, deletion=True)
    world.turn(40.0)
    assert phase(world) is Phase.TERMINATING
    assert RemoveNode(attempt=1, node=0, incarnation=1) in world.actions
    world.turn(70.0)
    assert RemoveNode(attempt=1, node=0, incarnation=1) in world.actions
    assert not world.purged
    world.turn(71.0)
    assert RemoveNode(attempt=1, node=0, incarnation=1, force=True) in world.actions
    decision = world.turn(72.0)
    assert decision.actions == (Purge(),)
    assert decision.done


@pytest.mark.parametrize("start", [pytest.param(p, id=p.value or "Empty") for p in Phase if p is not Phase.TERMINATING])
def test_every_phase_can_be_deleted(start: Phase) -> None:
    """Deletion is possible at any time, and ends in nothing."""
    assert Phase.TERMINATING in TRANSITIONS[start]
    record = dataclasses.replace(running(FIXED).record, phase=start, deletion=True)
    decision = reconcile(record, Observation(), FIXED, 50.0)
    assert decision.record.phase is Phase.TERMINATING
    assert decision.actions == (Purge(),)


def test_a_machine_that_slept_expires_nothing() -> None:
    """A gap in time counts as `max_gap` at the most; a clock that goes back counts as nothing."""
    world = World(policy=FIXED)
    world.settle(0.0)
    world.tells(JobState.FORMING)
    world.settle(10.0)
    world.settle(36_000.0)
    assert phase(world) is Phase.RUNNING
    assert world.record.clock == 10.0 + FIXED.max_gap
    world.settle(5.0)
    assert world.record.clock == 10.0 + FIXED.max_gap
    world.settle(15.0)
    assert world.record.clock == 10.0 + FIXED.max_gap + 10.0, "it goes on from where the clock is now"


def test_the_words_of_another_attempt_are_not_believed() -> None:
    """A verdict of the attempt before, still on disk, ends nothing."""
    world = running(dataclasses.replace(FIXED, retry_pause=0.0))
    world.fails()
    world.settle(20.0)
    world.settle(21.0)
    assert (world.record.phase, world.record.attempt, world.record.retries) == (Phase.RUNNING, 2, 1)


def test_a_finished_job_starts_again_with_all_its_memory() -> None:
    """A new owner gets a fresh budget and the next attempt's number; history and incidents stay."""
    world = running(dataclasses.replace(FIXED, retry_limit=0))
    world.fails()
    world.settle(20.0)
    world.record = world.record.restarted(owner="task-2", now=30.0)
    world.settle(30.0)
    assert (world.record.phase, world.record.attempt, world.record.retries) == (Phase.RUNNING, 2, 0)
    assert world.record.verdict is None
    assert [a.owner for a in world.record.attempts] == ["cli", "task-2"]


def test_terminal_phases_are_written_out() -> None:
    """Every phase has its row in the table."""
    assert set(TRANSITIONS) == set(Phase)
