"""Graceful fault tolerance beside the recovery of processes: what it makes of the faults of a running job."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.wire.incident import Answer, Cause, Rung
from rallypoint.wire.messages import SENT_AWAY, AgentState, Regroup, Stop
from rallypoint.wire.plan import Profile
from tests.agent.test_rendezvous import TWO, answers, killed, report, say, training
from tests.agent.test_rungs import RAISED, mindcluster

WORDS = ("retry", "recover-in-place", "recover")
TOLD = "rank 1 has the policy reset"


def running(settings: Settings, told: str = TOLD) -> State:
    """Return a job of two nodes whose workers can live on, and whose agents see the file."""
    state = training(settings)
    reports = (report(n, AgentState.RUNNING, 1, keeps=2, resizable=True, tolerance=told) for n in (0, 1))
    return say(state, *reports, now=10.0)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(mindcluster(*WORDS), id="an entry in the reset file"),
        pytest.param(mindcluster(*WORDS, graceful=True), id="the job's own word"),
    ],
)
@pytest.mark.parametrize("failure", [pytest.param(killed(1), id="killed"), pytest.param(RAISED, id="raised")])
def test_a_fault_of_a_process_reschedules_the_job(settings: Settings, failure: object) -> None:
    """V12: nobody is recovered; the agent of rank 0 leaves, for the node's own incident, and the others end their round."""
    state = say(running(settings), report(1, AgentState.FAILED, 1, failures=(failure,), keeps=1, tolerance=TOLD), now=15.0)

    master, other = answers(state, "0.1", "1.1")
    assert isinstance(master, Stop)
    assert master.verdict.reason == SENT_AWAY
    assert isinstance(other, Regroup)
    [incident] = state.incidents
    assert (incident.cause, incident.id.node, incident.rung) == (Cause.NODE, 0, Rung.RECOVER)
    assert incident.answer is Answer.RETRY_ELSEWHERE
    assert "graceful fault tolerance" in incident.reason
    assert state.verdict is None


def test_the_file_is_named_where_it_is_the_reason() -> None:
    """In the incident, and in what is published for the supervisor."""
    state = running(mindcluster(*WORDS))
    assert rendezvous.status(state, 11.0).tolerance == TOLD
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),), tolerance=TOLD), now=15.0)
    assert f"(reset file: {TOLD})" in state.incidents[0].rule


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        pytest.param(mindcluster(*WORDS), "", id="no entry"),
        pytest.param(mindcluster(*WORDS, process_recover="pause"), TOLD, id="recovery is paused"),
        pytest.param(
            dataclasses.replace(mindcluster(*WORDS), profile=Profile.LADDER, scheduling=None), TOLD, id="another profile"
        ),
        pytest.param(TWO, TOLD, id="no settings at all"),
    ],
)
def test_otherwise_the_workers_are_restarted_or_recovered(settings: Settings, told: str) -> None:
    """Where only one of both is in use, nobody is sent away."""
    state = say(running(settings, told), report(1, AgentState.FAILED, 1, failures=(killed(1),), keeps=1), now=15.0)
    assert [reply for reply in answers(state, "0.1", "1.1") if isinstance(reply, Stop)] == []
    assert [i.cause for i in state.incidents] == [Cause.PROCESS]


def test_an_entry_that_is_gone_is_forgotten() -> None:
    """What counts is what the file says at the fault."""
    state = say(running(mindcluster(*WORDS)), *(report(n, AgentState.RUNNING, 1, keeps=2) for n in (0, 1)), now=12.0)
    state = say(state, report(1, AgentState.FAILED, 1, failures=(killed(1),), keeps=1), now=15.0)
    assert [i.rung for i in state.incidents] == [Rung.RECOVER_IN_PLACE]
