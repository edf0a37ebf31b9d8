"""Real training that says nothing of itself: a slow rank is named, and a hang is found by what was learned of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.supervision.record import Phase as JobPhase
from rallypoint.wire.hang import HangState
from rallypoint.wire.incident import Cause
from rallypoint.wire.pulse import Phase
from rallypoint.wire.straggler import Straggler
from tests.live.jobs import Job, cli
from tests.waiting import eventually

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "scripts" / "phases.py"


def stragglers(job: Job) -> tuple[Straggler, ...]:
    return () if job.status is None else job.status.stragglers


def test_a_slow_rank_is_named_and_its_hang_is_found_long_before_hang_downtime(tmp_path: Path, home: Path) -> None:
    """The bound of half an hour is far away; steps, evaluations and checkpoints of this job take a fraction of a second."""
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
    [straggler] = eventually(lambda: stragglers(job), timeout=120.0, why=job.tell)
    assert (straggler.rank, straggler.score > 1.5) == (1, True)
    assert "rank 1 on node 0" in cli("status", job.name).stdout

    (tmp_path / "stick").touch()
    eventually((tmp_path / "trains-2").exists, timeout=120.0, why=job.tell)
    status = job.status
    assert status is not None
    (tmp_path / "enough").touch()
    record = job.ends()

    [incident, *_] = sorted((i for i in record.incidents if i.cause is Cause.HANG), key=lambda one: one.detected_at)
    assert "learned: data wait" in incident.rule
    assert incident.culprit is not None
    assert incident.culprit.rank == 1
    assert {Phase.STEP, Phase.DATA, Phase.CHECKPOINT, Phase.EVALUATION} <= {one.phase for one in status.learned}
    assert [event.round for event in status.events if event.kind == "straggler"] == [1]
    assert status.hang is None or status.hang.state is HangState.DOUBT
    assert record.phase is JobPhase.SUCCEEDED
    cli("delete", job.name)
