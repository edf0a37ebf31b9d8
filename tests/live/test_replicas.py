"""Snapshots kept on another node, with real agents: a node is lost with its memory, and its successor goes on from the copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.exits import Exit
from rallypoint.wire.status import JobState
from tests.live.agent_processes import SCRIPTS, Agents, agents, alive, said
from tests.waiting import eventually

SHARDED = SCRIPTS / "sharded.py"
STEPS, EVERY, LOST_AT = 20, 3, 11


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def resumed(job: Agents, round_: int, rank: int) -> tuple[int, str, int]:
    step, digest, size = (job.work / f"resumed.{round_}.{rank}").read_text().split()
    return int(step), digest, int(size)


def pid_of(job: Agents, rank: int) -> int | None:
    status = job.status()
    return next((told.pid for told in status.ranks if told.rank == rank), None) if status is not None else None


def test_a_lost_nodes_shard_comes_from_its_neighbour(job: Agents) -> None:
    """Nothing was ever persisted: the only other copy was in the memory of the node behind it in the ring."""
    (job.work / f"until.{LOST_AT}").touch()
    job.write_plan(
        entrypoint=str(SHARDED),
        args=(str(job.work), str(STEPS)),
        min_nodes=2,
        max_nodes=2,
        nproc_per_node=1,
        replica_every=EVERY,
        replica_limit=64 << 20,
        start_method="spawn",  # what workers would be forked from is not what this is about, and imports torch on each node
    )
    coordinator, first, second = job.coordinator(), job.node(0), job.node(1)
    eventually((job.work / f"digest.1.{LOST_AT}").exists, why=f"{LOST_AT} steps are trained")
    pid = eventually(lambda: pid_of(job, 1), why="its worker is told of")
    memory = Path((job.work / "memory.1.1").read_text())
    second.kill()
    eventually(lambda: not alive(pid), why="the node's worker is gone with it")
    shutil.rmtree(memory)
    (job.work / "go").touch()
    replacement = job.node(1, incarnation=2)

    assert [said(process)[0] for process in (coordinator, first, replacement)] == [Exit.OK] * 3
    found = [resumed(job, 2, rank) for rank in (0, 1)]
    step, digest, size = found[0]
    assert (found[1], size) == (found[0], 2)
    # The last that is on both nodes: its copying may have been under way at the kill, that of the one before never.
    assert step in (LOST_AT // EVERY * EVERY, (LOST_AT // EVERY - 1) * EVERY)
    assert digest == (job.work / f"digest.1.{step}").read_text()
    ended = job.status()
    assert ended is not None
    assert (ended.state, ended.fence.round) == (JobState.SUCCEEDED, 2)
