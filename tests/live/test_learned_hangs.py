"""Real training that reports nothing: a silence is noticed by what was learned of its steps."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rallypoint.capabilities.hang.wire import StatusSection
from rallypoint.supervision.record import Phase as JobPhase
from rallypoint.wire.hang import HangState
from rallypoint.wire.incident import Cause, Incident, Rung
from rallypoint.wire.pulse import Phase
from tests.live.jobs import Job, cli
from tests.optional import needs
from tests.waiting import eventually

needs("torch")

SCRIPT = Path(__file__).parent / "scripts" / "phases.py"

#: How often each phase was seen before the script falls silent.
SEEN = 5


def learned(job: Job) -> bool:
    """Return whether the coordinator knows how long each phase of the script takes, from many of them."""
    known = {} if job.status is None else {one.phase: one.count for one in StatusSection.of(job.status).learned}
    phases = (Phase.STEP, Phase.DATA, Phase.CHECKPOINT, Phase.EVALUATION)
    return all(known.get(phase, 0) >= SEEN for phase in phases)


def hangs(job: Job) -> list[Incident]:
    """Return the hangs that the coordinator tells of, in order."""
    incidents = () if job.status is None else job.status.incidents
    return sorted((i for i in incidents if i.cause is Cause.HANG), key=lambda one: one.detected_at)


@pytest.mark.extended
def test_a_silence_is_notified_long_before_hang_downtime(tmp_path: Path, home: Path) -> None:
    """The bound of half an hour is far away; steps, evaluations and checkpoints of this job take a fraction of a second.

    A rank that reads its data for long may be at work: nothing is restarted until there is positive evidence.
    """
    job = Job.write(
        tmp_path,
        home,
        entrypoint=str(SCRIPT),
        args=[str(tmp_path), "1"],
        nodes=1,
        nproc_per_node=2,
        health={"hang_downtime": 30, "hang_detection": 2},
        # On a slow machine the end of the processes may look like another hang: it must not end the job.
        recovery={"stop_grace_period": "1s", "max_hangs": 100},
    ).submit()
    eventually(lambda: learned(job), timeout=120.0, why=job.tell)

    (tmp_path / "stick").touch()
    [notified, *_] = eventually(lambda: hangs(job), timeout=120.0, why=job.tell)
    status = job.status
    assert status is not None
    assert (notified.rung, notified.answer, status.fence.round) == (Rung.NOTIFY, None, 1)
    assert notified.rule.startswith("hang_detection 2, learned: data wait")
    assert notified.rule.endswith("no positive evidence")
    assert notified.culprit is not None
    assert notified.culprit.rank == 1
    hang = StatusSection.of(status).hang
    assert hang is None or hang.state is HangState.DOUBT

    os.kill(next(rank.pid for rank in status.ranks if rank.rank == 1), signal.SIGSTOP)
    eventually((tmp_path / "trains-2").exists, timeout=180.0, why=job.tell)
    status = job.status
    assert status is not None
    (tmp_path / "enough").touch()
    record = job.ends()

    [restarted, *_] = (incident for incident in record.incidents if incident.rung is Rung.RESTART_WORKERS)
    assert restarted.rule.endswith("; positive evidence")
    assert restarted.reason.endswith("; rank 1 is stopped by a signal")
    assert {Phase.STEP, Phase.DATA, Phase.CHECKPOINT, Phase.EVALUATION} <= {
        one.phase for one in StatusSection.of(status).learned
    }
    hang = StatusSection.of(status).hang
    assert hang is None or hang.state is HangState.DOUBT
    assert record.phase is JobPhase.SUCCEEDED
    cli("delete", job.name)
