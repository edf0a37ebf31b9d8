"""`training_elastic_mode: ucp` with real agents: a world of another size waits until the last snapshot is in storage."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import Cause
from rallypoint.wire.plan import ElasticMode
from rallypoint.wire.status import JobState
from tests.live.agent_processes import SCRIPTS, Agents, agents, said
from tests.waiting import eventually

SHARDED = SCRIPTS / "sharded.py"
STEPS, SHRINKS, GROWS = 14, 6, 10


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def resumed(job: Agents, round_: int, rank: int = 0) -> tuple[int, str, int]:
    step, digest, size = (job.work / f"resumed.{round_}.{rank}").read_text().split()
    return int(step), digest, int(size)


@pytest.mark.extended
def test_a_sharded_state_is_cut_anew_for_another_number_of_nodes(job: Agents) -> None:
    """Two nodes, one, two: the shard of the node that leaves is in storage before the other has its place in a round.

    Nothing is persisted but for that. Every world begins with the weights of the step that it says.
    """
    storage, stands = job.work / "storage", job.work / f"until.{SHRINKS}"
    stands.touch()
    job.write_plan(
        entrypoint=str(SHARDED),
        args=(str(job.work), str(STEPS), str(storage)),
        min_nodes=1,
        max_nodes=2,
        nproc_per_node=1,
        last_call=60.0,
        elastic_mode=ElasticMode.UCP,
    )
    coordinator, first, second = job.coordinator(), job.node(0), job.node(1)
    eventually((job.work / f"digest.1.{SHRINKS}").exists, why="two nodes train")
    second.send_signal(signal.SIGTERM)
    (job.work / f"until.{GROWS}").touch()
    stands.unlink()
    eventually((job.work / f"digest.2.{GROWS}").exists, why="one trains on")
    stored = {manifest.step: manifest.world_size for manifest in FolderStore(storage).complete()}
    step, digest, size = resumed(job, 2)
    assert (step in (SHRINKS - 1, SHRINKS), size) == (True, 1)
    assert stored == {step: 2}, "its memory had one shard of two"
    assert digest == (job.work / f"digest.1.{step}").read_text()

    third = job.node(1, incarnation=2)
    eventually((job.work / "resumed.3.1").exists, why="two train again")
    (job.work / "go").touch()
    assert [said(process)[0] for process in (coordinator, first, third)] == [Exit.OK] * 3
    assert said(second)[0] == 128 + signal.SIGTERM
    step, digest, size = resumed(job, 3)
    assert resumed(job, 3, 1) == (step, digest, 2)
    assert (step in (GROWS - 1, GROWS), size) == (True, 2)
    assert digest == (job.work / f"digest.2.{step}").read_text()
    status = job.status()
    assert status is not None
    assert (status.state, {incident.cause for incident in status.incidents}) == (JobState.SUCCEEDED, {Cause.SCALE})
