"""The last rung, with real agents: nothing cheaper is left, and the last snapshot becomes a checkpoint before the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.checkpoint.persist import is_snapshot
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import Rung
from rallypoint.wire.status import JobState
from tests.live.agent_processes import SCRIPTS, Agents, agents, said

SHARDED = SCRIPTS / "sharded.py"
STEPS, LAST = 9, 5


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


@pytest.mark.extended
def test_before_the_end_every_shard_is_written_and_the_coordinator_commits(job: Agents) -> None:
    """Two nodes with a shard each, no restart left: the incident has the rung, the verdict names the checkpoint.

    Nothing was persisted before; another job goes on from there, with the weights of that step.
    """
    storage = job.work / "storage"
    (job.work / f"fail.{LAST}").touch()
    job.write_plan(
        entrypoint=str(SHARDED),
        args=(str(job.work), str(STEPS), str(storage)),
        min_nodes=2,
        max_nodes=2,
        nproc_per_node=1,
        max_restarts=0,
    )
    processes = [job.coordinator(), job.node(0), job.node(1)]

    assert [said(process)[0] for process in processes] == [Exit.OK, Exit.JOB_FAILED, Exit.JOB_FAILED]
    status = job.status()
    assert status is not None
    assert status.state is JobState.FAILED
    assert [incident.rung for incident in status.incidents] == [Rung.DUMP]
    (manifest,) = FolderStore(storage).complete()
    # Rank 1 may have ended before its very last snapshot was complete; that of the step before is, on both.
    assert manifest.step in (LAST - 1, LAST)
    assert (is_snapshot(manifest), manifest.world_size) == (True, 2)
    assert status.verdict is not None
    assert (
        f"saved a last checkpoint of step {manifest.step}: {FolderStore(storage).named()[0].path.name}"
        in status.verdict.message
    )
    assert [path.name for path in storage.iterdir() if path.name.endswith(".saving")] == []

    before = (job.work / f"digest.1.{manifest.step}").read_text()
    (job.work / f"fail.{LAST}").unlink()
    code, output = said(job.run("--standalone", "--nproc-per-node", 2, SHARDED, job.work, STEPS, storage))
    assert code == Exit.OK, output
    assert (job.work / "resumed.1.0").read_text() == f"{manifest.step} {before} 2"
