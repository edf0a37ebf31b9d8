"""Which rung answers a fault when workers can live on, and who does."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.agent.rendezvous.profile import SPARING, rules
from rallypoint.wire.incident import Culprit, FaultKind, Rung
from rallypoint.wire.messages import AgentState, Assignment, Regroup, WorkerReport
from rallypoint.wire.plan import Profile, Scheduling
from rallypoint.wire.status import JobState
from tests.agent.test_rendezvous import ELASTIC, TWO, answers, killed, report, say, training

RAISED = Culprit(
    node=0, host="host-0", rank=0, local_rank=0, error="ValueError: loss is nan", kind=FaultKind.APPLICATION_ERROR, lives=True
)


def mindcluster(*words: str, process_recover: str = "on", graceful: bool = False, off: tuple[str, ...] = ()) -> Settings:
    scheduling = Scheduling(
        fault_scheduling="grace",
        recover_strategy=words,
        process_recover=process_recover,
        graceful_tolerance=graceful,
        switched_off=off,
    )
    return dataclasses.replace(TWO, profile=Profile.MINDCLUSTER, scheduling=scheduling)


def running(settings: Settings = TWO, *, keeps: int = 2, resizable: bool = True) -> State:
    """Return a job of two nodes whose workers have said that they can live on."""
    state = training(settings)
    return say(state, *(report(n, AgentState.RUNNING, 1, keeps=keeps, resizable=resizable) for n in (0, 1)), now=10.0)


def back(state: State, *keeps: int, resizable: bool = True, now: float = 20.0) -> State:
    """Let each node wait for the next round with so many workers that live on."""
    return say(state, *(report(n, round_=1, keeps=k, resizable=resizable) for n, k in enumerate(keeps)), now=now)


def kept(state: State) -> list[int]:
    return [reply.kept for reply in answers(state, "0.1", "1.1") if isinstance(reply, Assignment)]


def rung(state: State) -> Rung:
    [incident] = state.incidents
    return incident.rung


def test_a_killed_worker_is_replaced_in_place() -> None:
    """The others live on, all of them are told how many, and the incident says so."""
    state = say(running(), report(0, AgentState.FAILED, 1, failures=(killed(0),), keeps=1), now=15.0)
    [told] = [reply for reply in answers(state, "1.1") if isinstance(reply, Regroup)]
    assert told.keep

    state = back(state, 1, 2)

    assert (state.state, kept(state), rung(state)) == (JobState.RUNNING, [3, 3], Rung.RECOVER_IN_PLACE)


def test_a_step_that_raised_is_run_again() -> None:
    """Nobody ends; the budget of process faults pays as for an end."""
    spent = dataclasses.replace(TWO, max_restarts=0)
    state = say(running(), report(0, AgentState.FAILED, 1, failures=(RAISED,), keeps=2), now=15.0)
    state = back(state, 2, 2)
    assert (kept(state), rung(state)) == ([4, 4], Rung.RETRY)

    state = say(running(spent), report(0, AgentState.FAILED, 1, failures=(RAISED,), keeps=2), now=15.0)
    assert state.verdict is not None
    assert "raised an error in a training step and is still running: ValueError: loss is nan" in state.verdict.message


def test_where_nobody_lives_on_after_all_the_workers_are_restarted() -> None:
    """They could not be freed, say: the ladder climbs, in the same incident."""
    state = say(running(), report(0, AgentState.FAILED, 1, failures=(killed(0),), keeps=1), now=15.0)
    state = back(state, 0, 0)
    assert (kept(state), rung(state)) == ([0, 0], Rung.RESTART_WORKERS)


def test_plain_scripts_are_restarted() -> None:
    """Who says nothing can do nothing."""
    state = say(running(keeps=0), report(0, AgentState.FAILED, 1, failures=(killed(0),)), now=15.0)
    assert rung(state) is Rung.RESTART_WORKERS


@pytest.mark.parametrize(
    ("settings", "failure", "expected"),
    [
        pytest.param(mindcluster("recover-in-place"), killed(0), Rung.RECOVER_IN_PLACE, id="in place, and it may"),
        pytest.param(mindcluster("recover-in-place"), RAISED, Rung.RECOVER_IN_PLACE, id="no retry: in place"),
        pytest.param(mindcluster("retry"), RAISED, Rung.RETRY, id="retry, and it may"),
        pytest.param(mindcluster("retry"), killed(0), Rung.RESTART_WORKERS, id="retry, and it is dead"),
        pytest.param(mindcluster("dump"), killed(0), Rung.RESTART_WORKERS, id="neither may be"),
        pytest.param(
            mindcluster("retry", "recover-in-place", process_recover="pause"), RAISED, Rung.RESTART_WORKERS, id="paused"
        ),
        pytest.param(mindcluster("recover-in-place", process_recover="off"), killed(0), Rung.RESTART_WORKERS, id="off"),
        pytest.param(
            mindcluster("retry", "recover-in-place", off=("recover-in-place",)),
            killed(0),
            Rung.RESTART_WORKERS,
            id="switched off",
        ),
    ],
)
def test_a_job_of_mindcluster_allows_what_its_words_say(settings: Settings, failure: Culprit, expected: Rung) -> None:
    """And where they do not allow it, nobody lives on, whatever the workers can."""
    state = say(running(settings), report(0, AgentState.FAILED, 1, failures=(failure,), keeps=1), now=15.0)
    assert (rung(state), state.forming.keep) == (expected, expected is not Rung.RESTART_WORKERS)
    assert bool(kept(back(state, 1, 2))[0]) is (expected is not Rung.RESTART_WORKERS)


def test_a_fault_that_comes_back_climbs() -> None:
    """Each strategy once while the rank makes no progress; from retry again once it has."""
    settings = dataclasses.replace(mindcluster("retry", "recover-in-place", "recover"), max_restarts=10)
    worker = WorkerReport(local_rank=0, pid=1, resumed_from=7)
    state, found = running(settings), []
    for round_ in range(1, 4):
        now = 10.0 * round_ + 5.0
        state = say(state, report(0, AgentState.FAILED, round_, failures=(RAISED,), keeps=2, workers=(worker,)), now=now)
        found.append(max(state.incidents, key=lambda incident: incident.id.round).rung)
        waiting = (report(n, round_=round_, keeps=2, resizable=True) for n in (0, 1))
        state = say(state, *waiting, now=now + 1.0)
        trains = (report(n, AgentState.RUNNING, round_ + 1, keeps=2, resizable=True) for n in (0, 1))
        state = say(state, *trains, now=now + 2.0)
    assert found == [Rung.RETRY, Rung.RECOVER_IN_PLACE, Rung.RECOVER]

    further = dataclasses.replace(worker, step=8)
    fresh = say(state, report(0, AgentState.FAILED, 4, failures=(RAISED,), keeps=2, workers=(further,)), now=55.0)
    assert max(fresh.incidents, key=lambda incident: incident.id.round).rung is Rung.RETRY
    ended = say(state, report(0, AgentState.FAILED, 4, failures=(RAISED,), keeps=2, workers=(worker,)), now=55.0)
    assert ended.verdict is not None
    assert "the remaining strategy is exit" in ended.verdict.message


def test_the_words_that_a_job_allows() -> None:
    """All of them outside of the profile; else those of the annotation, and exit."""
    assert permitted(TWO) == SPARING | {Rung.DUMP}
    words = mindcluster("retry", "dump")
    assert permitted(words) == {Rung.RETRY, Rung.DUMP, Rung.EXIT}
    assert words.scheduling is not None
    forced = dataclasses.replace(words, scheduling=dataclasses.replace(words.scheduling, fault_scheduling="force"))
    assert permitted(forced) == {Rung.DUMP, Rung.EXIT}


def permitted(settings: Settings) -> frozenset[Rung]:
    """Return the rungs that a job of these settings allows."""
    state = rendezvous.new(settings, job="job", uid="uid", attempt=1, term=1, now=0.0)
    return rules(state).permitted(state)


def test_a_lost_node_leaves_the_others_their_workers() -> None:
    """They wait for the next world, whose size is another: only who can follow lives on."""
    state = running(dataclasses.replace(ELASTIC, max_nodes=2))
    state = rendezvous.disconnected(state, "agent-1.1", 15.0)
    state = rendezvous.tick(state, 25.0)
    assert rung(state) is Rung.ELASTIC_TRAINING
    followed = say(state, report(0, round_=1, keeps=2, resizable=True), now=26.0)
    assert (followed.state, kept(followed)) == (JobState.RUNNING, [2])
    stuck = say(state, report(0, round_=1, keeps=2, resizable=False), now=26.0)
    assert (stuck.state, kept(stuck)) == (JobState.RUNNING, [0])


def test_a_node_that_is_replaced_changes_nobodys_place() -> None:
    """The world has the same shape: the workers of the other node live on, also where they could not follow into another."""
    state = running(resizable=False)
    state = rendezvous.tick(rendezvous.disconnected(state, "agent-1.1", 15.0), 25.0)
    assert rung(state) is Rung.RECOVER
    state = say(state, report(0, round_=1, keeps=2), report(1, incarnation=2), now=26.0)
    assert [r.kept for r in answers(state, "0.1", "1.2") if isinstance(r, Assignment)] == [2, 2]


def test_workers_of_an_older_round_are_not_taken_for_living_ones() -> None:
    """An agent that comes back late has nobody in the world that was broken."""
    state = say(running(), report(0, AgentState.FAILED, 1, failures=(killed(0),), keeps=1), now=15.0)
    state = say(state, report(0, round_=1, keeps=1), report(1, round_=0, keeps=2), now=20.0)
    assert kept(state) == [1, 1]
