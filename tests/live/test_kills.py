"""`kill -9` of everything that can be killed, on real processes. Each job ends well and nobody is restarted in vain."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause, Rung
from rallypoint.wire.status import JobState, JobStatus
from tests.live.jobs import COUNT, Job, cli, supervising
from tests.waiting import eventually


@pytest.fixture
def job(tmp_path: Path, home: Path, light: None) -> Iterator[Job]:
    """Two nodes of two workers that count until they may end, submitted and training."""
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nodes=2, nproc_per_node=2).submit()
    job.trains(ranks=4, beyond=10)
    yield job
    job.discard()


def pids(status: JobStatus) -> dict[int, int]:
    """Return process ids by rank."""
    return {rank.rank: rank.pid for rank in status.ranks}


@pytest.mark.extended
def test_a_worker(job: Job) -> None:
    """All workers start again in the next round on the same nodes, from their checkpoints; the incident names the culprit."""
    before = job.trains(ranks=4)
    agents = {p.pid for p in job.agents("node")}
    victim = next(r for r in before.ranks if r.rank == 3)
    signal_pid(victim.pid)
    after = job.trains(ranks=4, round_=2)
    assert not set(pids(after).values()) & set(pids(before).values())
    assert {p.pid for p in job.agents("node")} == agents
    job.may_end()
    record = job.ends()
    assert record.phase is Phase.SUCCEEDED
    [incident] = record.incidents
    assert (incident.cause, incident.rung) == (Cause.PROCESS, Rung.RESTART_WORKERS)
    assert incident.culprit is not None
    assert (incident.culprit.rank, incident.culprit.node, incident.culprit.signal) == (3, 1, 9)
    assert incident.healed_at is not None
    assert incident.resumed_step is not None
    assert incident.resumed_step >= 10, "every rank had a checkpoint by then"
    assert (record.progress.step or 0) >= (after.progress.step or 0)


@pytest.mark.extended
def test_the_coordinator(job: Job) -> None:
    """No worker notices: the same processes go on under the next term."""
    before = job.trains(ranks=4)
    [coordinator] = job.agents("coordinator")
    coordinator.kill()
    eventually(lambda: (s := job.status) and s.fence.term == 2, why=job.tell)
    after = job.trains(ranks=4, beyond=before.progress.step or 0)
    assert pids(after) == pids(before)
    assert after.fence.round == 1
    job.may_end()
    record = job.ends()
    assert record.phase is Phase.SUCCEEDED
    assert [i.cause for i in record.incidents] == [Cause.COORDINATOR]
    assert record.retries == 0


@pytest.mark.extended
def test_the_supervisor(job: Job) -> None:
    """Training goes on without one; the next finds the job again, its ends included."""
    before = job.trains(ranks=4)
    signal_pid(job.supervisor())
    after = job.trains(ranks=4, beyond=(before.progress.step or 0) + 5)
    assert pids(after) == pids(before)
    job.may_end()
    eventually(lambda: not job.agents("node"), why="the nodes should end by themselves")
    assert not job.record.finished, "nobody was there to see it"
    cli("supervise", job.name)
    assert job.record.phase is Phase.SUCCEEDED
    assert job.record.released


def test_a_node(tmp_path: Path, home: Path, light: None) -> None:
    """The rest shrink and go on while the node is away, and grow when its replacement comes."""
    recovery = {"replace_delay": "0s"}
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nodes="1:2", nproc_per_node=2, recovery=recovery).submit()
    job.trains(ranks=4, beyond=5)
    node = [p for p in job.processes() if p.mark.endswith("/1/1")]
    assert len(node) >= 3, "an agent and two workers"
    supervisor = job.supervisor()
    # Nobody replaces the node before the shrunk world was seen, however slow the machine is.
    signal_pid(supervisor, signal.SIGSTOP)
    try:
        for process in node:
            with contextlib.suppress(ProcessLookupError):  # workers end with their agent
                process.kill()
        shrunk = job.trains(ranks=2, round_=2)
    finally:
        signal_pid(supervisor, signal.SIGCONT)
    assert [m.node for m in shrunk.world] == [0]
    grown = job.trains(ranks=4, round_=3)
    assert [(m.node, m.incarnation) for m in grown.world] == [(0, 1), (1, 2)]
    job.may_end()
    record = job.ends()
    assert record.phase is Phase.SUCCEEDED
    lost = [i for i in record.incidents if i.cause is Cause.NODE]
    assert len(lost) == 1
    assert lost[0].id.node == 1
    assert lost[0].healed_at is not None


@pytest.mark.extended
def test_a_node_in_the_middle_of_a_collective(tmp_path: Path, home: Path) -> None:
    """The surviving rank fails too, for want of its peer; that costs no restart, and only the node's loss is told."""
    job = Job.write(
        tmp_path,
        home,
        str(tmp_path),
        entrypoint=str(COUNT.with_name("collective.py")),
        nodes="1:2",
        recovery={"max_restarts": 0, "replace_delay": "3s"},
        fault_tolerance={"retry_limit": 0},
    ).submit()
    eventually((tmp_path / "trains").exists, why=job.tell)
    job.agents("node")[1].kill()
    eventually(lambda: (s := job.status) and s.fence.round > 1 and s.state is JobState.RUNNING, why=job.tell)
    job.may_end()
    record = job.ends()
    assert record.phase is Phase.SUCCEEDED, job.tell()
    assert {i.cause for i in record.incidents} <= {Cause.NODE, Cause.SCALE}
    assert sum(1 for i in record.incidents if i.cause is Cause.NODE) == 1


@pytest.mark.extended
def test_everything_at_once(job: Job) -> None:
    """Supervisor, coordinator and a worker die together; the next supervisor puts it all right."""
    status = job.trains(ranks=4)
    signal_pid(job.supervisor())
    job.agents("coordinator")[0].kill()
    signal_pid(next(r.pid for r in status.ranks if r.rank == 2))
    with supervising(job):
        job.trains(ranks=4, round_=2)
        job.may_end()
        record = job.ends()
    assert record.phase is Phase.SUCCEEDED
    assert record.attempt == 1
    assert {i.cause for i in record.incidents} == {Cause.PROCESS, Cause.COORDINATOR}


def signal_pid(pid: int, number: int = signal.SIGKILL) -> None:
    """Kill one process."""
    os.kill(pid, number)
