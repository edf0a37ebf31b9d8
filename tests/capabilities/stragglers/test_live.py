"""Real training that reports nothing: the rank that takes longer for its own part of each step is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.capabilities.stragglers.wire import StatusSection, Straggler
from rallypoint.supervision.record import Phase
from tests.live import jobs
from tests.live.jobs import Job, cli
from tests.waiting import eventually

pytest.importorskip("torch")

SCRIPT = Path(jobs.__file__).parent / "scripts" / "phases.py"


def stragglers(job: Job) -> tuple[Straggler, ...]:
    return () if job.status is None else StatusSection.of(job.status).stragglers


@pytest.mark.extended
def test_a_slow_rank_is_named(tmp_path: Path, home: Path) -> None:
    """In the status, in its table, and once among the events; the job goes on."""
    job = Job.write(
        tmp_path,
        home,
        entrypoint=str(SCRIPT),
        args=[str(tmp_path), "1"],
        nodes=1,
        nproc_per_node=2,
        recovery={"stop_grace_period": "1s"},
    ).submit()
    try:
        [straggler] = eventually(lambda: stragglers(job), timeout=120.0, why=job.tell)
        assert (straggler.rank, straggler.score > 1.5) == (1, True)
        assert "rank 1 on node 0" in cli("status", job.name).stdout

        (tmp_path / "enough").touch()
        record = job.ends()

        status = job.status
        assert status is not None
        assert [event.round for event in status.events if event.kind == "straggler"] == [1]
        assert record.phase is Phase.SUCCEEDED
    finally:
        cli("delete", job.name, check=False)
