"""A world of two nodes of which one is done: its ranks count as ended when the others wait for them."""

from __future__ import annotations

import dataclasses

from rallypoint.agent.rendezvous.core import State
from rallypoint.capabilities.hang.state import HangSettings
from rallypoint.wire.hang import CallSeen, Evidence, GroupSeen, RankSeen
from rallypoint.wire.incident import Rung
from rallypoint.wire.messages import AgentReport, AgentState, WorkerReport
from rallypoint.wire.pulse import Learned, Phase
from tests.agent.test_rendezvous import report, say
from tests.capabilities.hang.jobs import own, watched

HANG = HangSettings(hang_downtime=600.0, hang_detection=2, report_interval=1.0)
STEPS = Learned(phase=Phase.STEP, count=500, p99=0.02, longest=0.05)
REDUCE = ("torch/distributed/distributed_c10d.py:3252 all_reduce", "train.py:20 step")
PENDING = GroupSeen(
    name="0", first=0, step=1, size=4, called=9, pending=(CallSeen(operation="all_reduce", number=9),)
)  # fmt: skip


def says(now: float, evidence: Evidence | None = None) -> AgentReport:
    """Return a report of the first node, whose ranks have been silent since 100 s."""
    quiet = now - 100.0
    workers = tuple(
        WorkerReport(local_rank=n, pid=10 + n, liveness=5, phase=Phase.STEP, beat=100_000, quiet=quiet) for n in (0, 1)
    )
    return report(0, AgentState.RUNNING, 1, workers=workers, learned=(STEPS,), evidence=evidence)


def looked(state: State, now: float, *, own_code: bool) -> State:
    """Let time pass until the first node is asked, and have it answer: its ranks wait, or one of them is in its own code."""
    while (inquiry := own(state).inquiry) is None:
        now += 0.25
        state = say(state, says(now), now=now)
    waits = [RankSeen(local_rank=n, pid=10 + n, state="S", frames=REDUCE, groups=(PENDING,)) for n in (0, 1)]
    if own_code:
        late = dataclasses.replace(PENDING, called=8, pending=())
        waits[1] = dataclasses.replace(waits[1], frames=("train.py:9 load",), groups=(late,))
    found = Evidence(round=1, number=inquiry.number, path="/logs/hang-1.txt", ranks=tuple(waits))
    return say(state, says(now + 0.1, found), now=now + 0.1)


def begun() -> State:
    """Return a job whose second node is done."""
    done = report(1, AgentState.DONE, 1, workers=())
    return say(watched(HANG), says(100.0), done, now=100.0)


def test_ranks_of_a_node_that_is_done_are_waited_for_in_vain() -> None:
    """They never come to the collective of the others: that is positive evidence, and they are to blame."""
    state = looked(looked(begun(), 100.0, own_code=False), 104.5, own_code=False)
    [incident] = state.incidents

    assert incident.rung is Rung.RESTART_WORKERS
    assert incident.reason.endswith("; ranks 0, 1 wait in all_reduce #9 of group 0, ranks 2, 3 have ended")
    assert incident.culprit is not None
    assert (incident.culprit.rank, incident.culprit.node, incident.culprit.log_path) == (2, 1, "")


def test_a_rank_in_its_own_code_may_still_come() -> None:
    """Although the others are done."""
    state = looked(looked(begun(), 100.0, own_code=True), 104.5, own_code=True)

    assert [incident.rung for incident in state.incidents] == [Rung.NOTIFY]
