"""When a fault counts as over for a script that reports no step."""

from __future__ import annotations

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.wire.incident import Culprit
from rallypoint.wire.messages import AgentState, WorkerReport
from tests.agent.fakes import new_state, report

KILLED = Culprit(node=1, host="127.0.0.1", rank=1, local_rank=0, signal=9)


def worker(liveness: int) -> WorkerReport:
    return WorkerReport(local_rank=0, pid=7, liveness=liveness)


def test_workers_that_run_again_have_not_trained_again_until_an_optimizer_steps() -> None:
    """On a loaded machine a minute of imports lies between the two."""
    state = new_state(now=0.0)
    for now, reports in (
        (0.0, [report(0), report(1)]),
        (1.0, [report(n, AgentState.RUNNING, round=1, workers=(worker(9),)) for n in (0, 1)]),
        (50.0, [report(1, AgentState.FAILED, round=1, failures=(KILLED,), workers=(worker(9),))]),
        (50.3, [report(0, round=1, workers=(worker(9),)), report(1, round=1, workers=(worker(9),))]),
        (50.6, [report(n, AgentState.RUNNING, round=2, workers=(worker(0),)) for n in (0, 1)]),
    ):
        for one in reports:
            state = rendezvous.receive(state, one, now)
    [incident] = state.incidents
    assert (incident.healed_at, incident.trained_at) == (50.6, None)

    state = rendezvous.receive(state, report(1, AgentState.RUNNING, round=2, workers=(worker(1),)), 122.0)
    [incident] = state.incidents
    assert (incident.healed_at, incident.trained_at) == (50.6, 122.0)
    assert state.events[-1].detail == "first optimizer step 72.0 s after the interruption"
