"""The node agent's state machine: events in, actions out."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.node.decide import STATES, Node, Phase, step
from rallypoint.agent.node.events import (
    Action,
    Advised,
    Announced,
    Answered,
    AskExtension,
    End,
    Event,
    Freed,
    LeaveOverdue,
    LeaveWorld,
    StartWorkers,
    StepFailed,
    StopWorkers,
    StoreLost,
    Told,
    WorkersEnded,
    WorkersGone,
)
from rallypoint.wire.exits import Exit
from rallypoint.wire.failover import Failover
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit
from rallypoint.wire.messages import SENT_AWAY, AgentState, Assignment, Continue, Refusal, Regroup, Reply, Stop
from rallypoint.wire.status import Outcome, Verdict

FENCE = Fence(attempt=1, term=1, round=1)
SUCCEEDED = Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="all ended well")
AWAY = Verdict(outcome=Outcome.FAILED, reason=SENT_AWAY, message="node 0 must leave")
FAILED = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message="rank 1 exited with code 1")
SIGTERM = Told(code=143, reason="the agent received SIGTERM", leaving=True)
LOST = Told(code=Exit.LOST_CONTACT, reason="no coordinator answered", leaving=False)
GONE = WorkersGone()
DIED = WorkersEnded(ranks=frozenset({1}), failures=(Culprit(local_rank=1, signal=9),))
WELL = WorkersEnded(ranks=frozenset({0, 1}))
STOP, KILL = StopWorkers(), StopWorkers(at_once=True)


def assignment(round_: int = 1, term: int = 1) -> Assignment:
    return Assignment(
        fence=Fence(attempt=1, term=term, round=round_),
        node=0,
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        world_size=2,
        store="127.0.0.1:1",
        restart_count=0,
        max_restarts=3,
        digest="d",
    )


def answered(reply: Reply) -> Answered:
    return Answered(reply=reply)


ASSIGNED = answered(assignment())
REGROUP = answered(Regroup(fence=FENCE, reason="node 1 joins"))
DEAD = answered(Regroup(fence=FENCE, reason="node 1 was lost", dead=True))


def play(*events: Event) -> tuple[Node, list[Action]]:
    """Return the agent after `events`, and what the last of them made it do."""
    node = Node(local_world_size=2, fence=Fence(attempt=1))
    actions: tuple[Action, ...] = ()
    for event in events:
        node, actions = step(node, event)
    return node, list(actions)


@pytest.mark.parametrize(
    ("events", "phase", "actions"),
    [
        pytest.param([answered(Continue(fence=FENCE))], Phase.JOINING, [], id="nothing new"),
        pytest.param([ASSIGNED], Phase.RUNNING, [StartWorkers(assignment=assignment())], id="assigned: start"),
        pytest.param([ASSIGNED, ASSIGNED], Phase.RUNNING, [], id="assigned again: nothing"),
        pytest.param([ASSIGNED, answered(assignment(term=2))], Phase.RUNNING, [], id="another coordinator repeats the round"),
        pytest.param([ASSIGNED, answered(assignment(2))], Phase.REGROUPING, [KILL], id="the world went on: stop first"),
        pytest.param([ASSIGNED, WELL], Phase.DONE, [], id="all ended well"),
        pytest.param([ASSIGNED, WorkersEnded(ranks=frozenset({0}))], Phase.RUNNING, [], id="one of two ended well"),
        pytest.param([ASSIGNED, DIED], Phase.FAILING, [KILL], id="a worker died: stop the others"),
        pytest.param([ASSIGNED, DIED, REGROUP], Phase.FAILING, [], id="told to regroup while it does"),
        pytest.param([ASSIGNED, DIED, GONE], Phase.JOINING, [], id="nobody left: join again"),
        pytest.param(
            [ASSIGNED, DIED, GONE, answered(assignment(2))],
            Phase.RUNNING,
            [StartWorkers(assignment=assignment(2))],
            id="the next round",
        ),
        pytest.param([ASSIGNED, DIED, GONE, ASSIGNED], Phase.JOINING, [], id="an old assignment starts nothing"),
        pytest.param([ASSIGNED, REGROUP], Phase.REGROUPING, [STOP], id="another node joins: there is time"),
        pytest.param([ASSIGNED, DEAD], Phase.REGROUPING, [KILL], id="another node failed: nobody comes any more"),
        pytest.param([ASSIGNED, REGROUP, REGROUP], Phase.REGROUPING, [], id="told again"),
        pytest.param([ASSIGNED, REGROUP, DIED], Phase.REGROUPING, [], id="what we stop does not fail"),
        pytest.param([ASSIGNED, REGROUP, GONE], Phase.JOINING, [], id="regrouped"),
        pytest.param([REGROUP], Phase.JOINING, [], id="nothing to regroup from"),
        pytest.param([ASSIGNED, WELL, REGROUP], Phase.REGROUPING, [STOP], id="done, but another node failed"),
        pytest.param([ASSIGNED, StoreLost(reason="killed")], Phase.FAILING, [KILL], id="the store is lost"),
        pytest.param([StoreLost(reason="killed")], Phase.JOINING, [], id="a store of no round"),
        pytest.param([ASSIGNED, answered(Stop(fence=FENCE, verdict=SUCCEEDED))], Phase.ENDING, [STOP], id="verdict: stop"),
        pytest.param([SIGTERM], Phase.ENDING, [STOP], id="signal before the first round"),
        pytest.param([ASSIGNED, SIGTERM], Phase.ENDING, [STOP], id="signal in a round"),
        pytest.param([ASSIGNED, SIGTERM, DIED], Phase.ENDING, [], id="workers end after the signal"),
        pytest.param([ASSIGNED, SIGTERM, REGROUP], Phase.ENDING, [], id="no way back"),
        pytest.param([ASSIGNED, SIGTERM, GONE], Phase.ENDED, [End(code=143)], id="signal: ended"),
        pytest.param([ASSIGNED, LOST, GONE], Phase.ENDED, [End(code=Exit.LOST_CONTACT)], id="lost contact: ended"),
        pytest.param([ASSIGNED, SIGTERM, GONE, ASSIGNED], Phase.ENDED, [], id="the end is the end"),
    ],
)
def test_each_event_moves_the_agent(events: list[Event], phase: Phase, actions: list[Action]) -> None:
    """The table of the module's theory."""
    node, done = play(*events)

    assert (node.phase, done) == (phase, actions)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        pytest.param(Stop(fence=FENCE, verdict=SUCCEEDED), Exit.OK, id="succeeded"),
        pytest.param(Stop(fence=FENCE, verdict=FAILED), Exit.JOB_FAILED, id="failed"),
        pytest.param(Stop(fence=FENCE, verdict=AWAY), Exit.ELSEWHERE, id="sent away"),
        pytest.param(Refusal(fence=FENCE, reason="replaced", stale=True), Exit.STALE, id="replaced"),
    ],
)
def test_a_final_answer_ends_the_agent_with_its_code(reply: Reply, code: Exit) -> None:
    """The workers are stopped first, whatever the answer."""
    _, actions = play(ASSIGNED, answered(reply), GONE)

    assert actions == [End(code=code)]


def test_a_refusal_that_is_not_stale_is_survived() -> None:
    """The slot may become free, the newer coordinator may be found."""
    node, actions = play(answered(Refusal(fence=FENCE, reason="node 0 is taken", stale=False)))

    assert (node.phase, actions) == (Phase.JOINING, [])


def test_what_failed_is_told_until_the_next_assignment() -> None:
    """The first report of a failure may be lost, so it is repeated while the agent waits for a place."""
    waiting, _ = play(ASSIGNED, DIED, GONE)
    running, _ = play(ASSIGNED, DIED, GONE, answered(assignment(2)))

    assert (STATES[waiting.phase], waiting.round, waiting.failures) == (AgentState.WAITING, 1, DIED.failures)
    assert (running.round, running.failures) == (2, ())


def test_workers_that_die_together_are_ordered_by_blame() -> None:
    """The one that a signal ended comes before the one that lost its peer, whoever was seen first."""
    collateral = Culprit(local_rank=0, exit_code=1, error="RuntimeError: Connection closed by peer", at=1.0)
    killed = Culprit(local_rank=1, signal=9, at=2.0)
    node, _ = play(ASSIGNED, WorkersEnded(ranks=frozenset({0, 1}), failures=(collateral, killed)))

    assert node.failures == (killed, collateral)


def test_the_highest_fence_is_kept() -> None:
    """A new term shows in every later report; the round stays that of the last assignment."""
    node, _ = play(ASSIGNED, answered(Continue(fence=Fence(attempt=1, term=3, round=7))))

    assert node.fence == Fence(attempt=1, term=3, round=1)


def test_only_an_agent_that_leaves_by_itself_says_so() -> None:
    """A lost coordinator hears nothing, and one that gave the verdict knows."""
    assert play(ASSIGNED, SIGTERM)[0].leaving
    assert not play(ASSIGNED, LOST)[0].leaving
    assert not play(ASSIGNED, SIGTERM, answered(Stop(fence=FENCE, verdict=FAILED)))[0].leaving


@pytest.mark.parametrize("late", [pytest.param(SIGTERM, id="a signal"), pytest.param(LOST, id="lost contact")])
def test_nothing_changes_the_code_of_a_verdict(late: Event) -> None:
    """The job has succeeded, also for who cleans up behind it with a signal."""
    _, actions = play(ASSIGNED, answered(Stop(fence=FENCE, verdict=SUCCEEDED)), late, GONE)

    assert actions == [End(code=Exit.OK)]


def test_a_verdict_replaces_the_code_of_a_signal() -> None:
    """What the job ended with says more than what its agent would have ended with."""
    _, actions = play(ASSIGNED, SIGTERM, answered(Stop(fence=FENCE, verdict=SUCCEEDED)), GONE)

    assert actions == [End(code=Exit.OK)]


# --- With a failover extension ---------------------------------------------------------------------------------------------

ASKED = AskExtension(round=1, failures=DIED.failures)


def advised(*events: Event) -> tuple[Node, list[Action]]:
    node, actions = Node(local_world_size=2, extension=True), list[Action]()
    for event in events:
        node, done = step(node, event)
        actions = list(done)
    return node, actions


def test_an_extension_is_asked_while_the_workers_are_stopped() -> None:
    """Nobody waits for its answer but the report: to the others the node still runs, and tells of no failure."""
    node, actions = advised(ASSIGNED, DIED)
    assert actions == [ASKED, KILL]
    assert (node.state, node.told_failures) == (AgentState.RUNNING, ())
    node, _ = advised(ASSIGNED, DIED, GONE)
    assert (node.state, node.told_failures) == (AgentState.RUNNING, ()), "and when nothing of it runs any more"


def test_the_answer_is_told_with_the_failure() -> None:
    """Both until the next assignment."""
    answer = Advised(round=1, failover=Failover.NODE, note="n")
    for events in ((DIED, answer), (DIED, GONE, answer), (DIED, answer, GONE)):
        node, _ = advised(ASSIGNED, *events)
        assert node.state in (AgentState.FAILED, AgentState.WAITING)
        assert (node.told_failures, node.failover, node.note) == (DIED.failures, Failover.NODE, "n")
    node, _ = advised(ASSIGNED, DIED, GONE, answer, answered(assignment(2)))
    assert (node.told_failures, node.failover, node.note) == ((), None, "")


def test_an_answer_about_another_round_is_not_taken() -> None:
    """It came too late: the agent was regrouped and has failed once more meanwhile."""
    node, _ = advised(ASSIGNED, DIED, Advised(round=0, failover=Failover.ABORT))
    assert (node.asking, node.failover) == (True, None)


def test_an_extension_that_thinks_keeps_nobody_from_ending() -> None:
    """A verdict, a signal: the agent ends while it is asked, and tells that it leaves."""
    node, _ = advised(ASSIGNED, DIED, SIGTERM)
    assert node.state is AgentState.LEAVING
    _, actions = advised(ASSIGNED, DIED, answered(Stop(fence=FENCE, verdict=FAILED)), GONE)
    assert actions == [End(code=Exit.JOB_FAILED)]


# --- Workers that live on --------------------------------------------------------------------------------------------------

ABLE: list[Event] = [Announced(round=1, local_rank=rank, able=True) for rank in (0, 1)]
RAISED = StepFailed(round=1, failure=Culprit(local_rank=1, error="ValueError: loss is nan", lives=True))
KEEPING: list[Event] = [answered(assignment(1)), *ABLE, DIED]


def kept_in(round_: int) -> Answered:
    return answered(dataclasses.replace(assignment(round_), kept=1))


def keep(*events: Event) -> tuple[Node, list[Action]]:
    """As `play`, for a job whose workers may live on."""
    node = Node(local_world_size=2, fence=Fence(attempt=1), keeps=True)
    actions: tuple[Action, ...] = ()
    for event in events:
        node, actions = step(node, event)
    return node, list(actions)


def leave(*ranks: int, reason: str = "a worker of this node failed") -> LeaveWorld:
    return LeaveWorld(round=1, ranks=frozenset(ranks), reason=reason)


def spare(*ranks: int, at_once: bool = True) -> StopWorkers:
    return StopWorkers(spare=frozenset(ranks), at_once=at_once)


def gone(*spared: int) -> WorkersGone:
    return WorkersGone(spared=frozenset(spared))


FREED_0 = Freed(round=1, local_rank=0)


@pytest.mark.parametrize(
    ("events", "phase", "actions"),
    [
        pytest.param(KEEPING, Phase.FAILING, [leave(0), spare(0)], id="one died: the other is told to leave"),
        pytest.param([*KEEPING, gone(0)], Phase.FAILING, [], id="it has not left: no place is asked for"),
        pytest.param([*KEEPING, FREED_0], Phase.FAILING, [], id="it has left, the dead one's group is still there"),
        pytest.param([*KEEPING, gone(0), FREED_0], Phase.JOINING, [], id="all is clear: a place is asked for"),
        pytest.param([*KEEPING, FREED_0, gone(0)], Phase.JOINING, [], id="all is clear, the other way round"),
        pytest.param(
            [*KEEPING, gone(0), FREED_0, kept_in(2)],
            Phase.RUNNING,
            [StartWorkers(assignment=dataclasses.replace(assignment(2), kept=1), kept=frozenset({0}))],
            id="a place: the other is started beside it",
        ),
        pytest.param(
            [*KEEPING, gone(0), FREED_0, answered(assignment(2))],
            Phase.REGROUPING,
            [spare(at_once=True)],
            id="a world in which nobody lives on: it is stopped first",
        ),
        pytest.param([*KEEPING, LeaveOverdue(round=1)], Phase.FAILING, [spare(at_once=True)], id="it did not leave in time"),
        pytest.param(
            [*KEEPING, gone(0), FREED_0, LeaveOverdue(round=1)],
            Phase.JOINING,
            [],
            id="the deadline is of no matter to who has left",
        ),
        pytest.param([*KEEPING, LeaveOverdue(round=0)], Phase.FAILING, [], id="the deadline of another round says nothing"),
        pytest.param(
            [*KEEPING, gone(0), FREED_0, WorkersEnded(ranks=frozenset({0}))],
            Phase.REGROUPING,
            [spare()],
            id="it dies while it waits: what it left is stopped",
        ),
        pytest.param(
            [*KEEPING, gone(0), FREED_0, WorkersEnded(ranks=frozenset({0})), gone(0)],
            Phase.REGROUPING,
            [],
            id="what was said before that is not believed",
        ),
        pytest.param(
            [*KEEPING, gone(0), FREED_0, Announced(round=1, local_rank=0, able=False)],
            Phase.REGROUPING,
            [spare(at_once=True)],
            id="its line is closed: nobody can tell it its place",
        ),
        pytest.param(
            [ASSIGNED, *ABLE, RAISED],
            Phase.FAILING,
            [leave(0, reason="ValueError: loss is nan"), spare(0, 1)],
            id="a step raised: nobody is stopped",
        ),
        pytest.param([ASSIGNED, *ABLE, RAISED, gone(0, 1), FREED_0], Phase.JOINING, [], id="a step raised, and all have left"),
        pytest.param(
            [ASSIGNED, *ABLE, REGROUP],
            Phase.REGROUPING,
            [leave(0, 1, reason="node 1 joins"), spare(0, 1, at_once=False)],
            id="regroup",
        ),
        pytest.param(
            [ASSIGNED, *ABLE, answered(Regroup(fence=FENCE, reason="a hang", keep=False))],
            Phase.REGROUPING,
            [STOP],
            id="regroup, and nobody may live on",
        ),
        pytest.param(
            [*KEEPING, gone(0), FREED_0, answered(Regroup(fence=FENCE, reason="x", keep=False))],
            Phase.REGROUPING,
            [STOP],
            id="nobody may live on, told late",
        ),
        pytest.param([ASSIGNED, *ABLE, SIGTERM], Phase.ENDING, [STOP], id="a signal spares nobody"),
        pytest.param([*KEEPING, SIGTERM], Phase.ENDING, [STOP], id="nor while they leave"),
        pytest.param([ASSIGNED, ABLE[0], DIED], Phase.FAILING, [leave(0), spare(0)], id="who cannot is stopped"),
        pytest.param(
            [ASSIGNED, Announced(round=2, local_rank=0, able=True), DIED], Phase.FAILING, [KILL], id="said of another round"
        ),
        pytest.param(
            [ASSIGNED, *ABLE, StoreLost(reason="killed")],
            Phase.FAILING,
            [leave(0, 1, reason="killed"), spare(0, 1)],
            id="the store is lost",
        ),
    ],
)
def test_workers_that_live_on(events: list[Event], phase: Phase, actions: list[Action]) -> None:
    """They leave the broken world, wait for the next, and are stopped where that cannot be."""
    node, done = keep(*events)
    assert (node.phase, done) == (phase, actions)


def test_a_job_that_forbids_it_stops_all_workers() -> None:
    """Whatever they say they can do."""
    node, done = play(*KEEPING)
    assert (node.phase, done, node.keepable) == (Phase.FAILING, [KILL], frozenset())


def test_a_step_that_raised_is_a_failure_of_a_worker_that_lives() -> None:
    """It is told like an end; with the end of another worker beside it, that comes first."""
    node, _ = keep(ASSIGNED, *ABLE, RAISED)
    assert (node.state, node.told_failures, node.keepable) == (AgentState.FAILED, (RAISED.failure,), frozenset({0, 1}))
    node, _ = keep(ASSIGNED, *ABLE, RAISED, WorkersEnded(ranks=frozenset({0}), failures=(Culprit(local_rank=0, signal=9),)))
    assert [failure.local_rank for failure in node.told_failures] == [0, 1]
    assert node.keepable == frozenset({1})


CLOSED = Announced(round=1, local_rank=0, able=False)
EXITED = WorkersEnded(ranks=frozenset({0}), failures=(Culprit(local_rank=0, exit_code=66),))


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        pytest.param([RAISED, CLOSED, EXITED], Phase.FAILING, id="while the others leave"),
        pytest.param([RAISED, CLOSED, WorkersGone(spared=frozenset({1})), EXITED], Phase.JOINING, id="after they have"),
        pytest.param([DEAD, CLOSED, EXITED], Phase.REGROUPING, id="another node was heard first"),
    ],
)
def test_who_broke_the_round_may_be_heard_last(events: list[Event], phase: Phase) -> None:
    """Rank 0 exits, and before its agent sees that rank 1 has lost its connection to it, and the line to rank 0 is closed."""
    node, _ = keep(ASSIGNED, *ABLE, *events)

    assert (node.phase, node.keepable) == (phase, frozenset({1}))
    assert EXITED.failures[0] in node.told_failures


def test_who_lived_on_can_do_so_again() -> None:
    """Without another word; the one beside it must say so first."""
    again = WorkersEnded(ranks=frozenset({1}), failures=(Culprit(local_rank=1, signal=9),))
    node, _ = keep(*KEEPING, gone(0), FREED_0, kept_in(2), again)
    assert (node.phase, node.kept, node.owing) == (Phase.FAILING, frozenset({0}), frozenset({0}))
