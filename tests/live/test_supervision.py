"""The local backend driven by the supervisor for real: processes that hang, are slow to start, refuse to die, or vanish."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobState
from tests.live.jobs import Job, Process, cli, supervising
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("light")


@contextlib.contextmanager
def stopped(*processes: Process) -> Iterator[None]:
    """Let processes hang for a while."""
    for process in processes:
        process.kill(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill(signal.SIGCONT)


def of_node(job: Job, number: int) -> list[Process]:
    """Return the agent and the workers of a node, without its shim."""
    return [p for p in job.processes() if f"/1/{number}/" in p.mark and "local.shim" not in p.command]


def phases(job: Job) -> list[str]:
    """Return the phases that the job has entered, in order."""
    names = {phase.value.lower() for phase in Phase if phase is not Phase.EMPTY}
    return [event.kind for event in job.record.history if event.kind in names]


@pytest.mark.extended
def test_a_node_that_hangs_is_lost_by_its_lease(tmp_path: Path, home: Path) -> None:
    """The others go on without it; its processes are there all the time, so nobody takes its place; it comes back and joins."""
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nodes="1:2", health={"node_lease": "10s"}).submit()
    job.trains(ranks=2, beyond=3)
    victims = of_node(job, 1)
    assert len(victims) >= 2, "an agent and a worker"
    with stopped(*victims):
        shrunk = job.trains(ranks=1, round_=2)
        assert [member.node for member in shrunk.world] == [0]
        lost = [i for i in shrunk.incidents if i.cause is Cause.NODE]
        assert [(i.id.node, i.id.sequence) for i in lost] == [(1, 1)]
        assert "lease" in lost[0].reason
    grown = job.trains(ranks=2, round_=3)
    assert [(member.node, member.incarnation) for member in grown.world] == [(0, 1), (1, 1)]
    job.may_end()
    record = job.ends()
    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)


@pytest.mark.extended
def test_a_node_that_does_not_start_and_does_not_end(tmp_path: Path, home: Path) -> None:
    """The warm-up grace is over, then the failure grace; the reset ends it by force, and the next attempt begins."""
    # Attempts that are not stopped may be too slow on this machine all the same: whichever is found is the one that counts.
    graces = {"warmup_grace_period": "10s", "forceful_deletion_grace_period": "3s"}
    limits = {"retry_limit": 50, "no_progress_limit": 0}
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nodes=1, fault_tolerance={**graces, **limits}).submit()
    agent = eventually(lambda: next(iter(job.agents("node")), None), every=0.002, why=job.tell)
    agent.kill(signal.SIGSTOP)  # an interpreter takes far longer to start than it takes to find it
    attempt = int(agent.mark.split("/")[1])
    eventually(lambda: job.record.attempt > attempt, why=job.tell)
    assert agent.pid not in {p.pid for p in job.processes()}, "zero is seen before the next attempt begins"
    assert job.record.attempts[attempt - 1].reason == "InsufficientPodsReady"
    assert phases(job)[:4] == ["resuming", "running", "resetting", "resuming"]
    cli("delete", job.name)


@pytest.mark.extended
def test_everything_vanishes_at_once(tmp_path: Path, home: Path) -> None:
    """As in a power cut: no exit file, no supervisor. The next one takes every process for lost, and the job goes on."""
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nodes=2).submit()
    before = job.trains(ranks=2, beyond=20)
    while left := job.processes():
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    assert job.status is not None
    assert job.status.state is JobState.RUNNING, "nobody was there to say anything else"
    with supervising(job):
        after = job.trains(ranks=2, round_=2)
        job.may_end()
        record = job.ends()
    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)
    assert {i.id.node for i in record.incidents if i.cause is Cause.NODE} == {0, 1}
    assert (record.progress.step or 0) >= (after.progress.step or 0)
    assert record.progress.resumed_from is not None
    assert record.progress.resumed_from >= (before.progress.step or 0)
