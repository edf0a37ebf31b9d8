"""Snapshots in memory with a real agent: a worker is killed, and the next one goes on at its last step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.checkpoint.persist import is_snapshot
from rallypoint.wire.exits import Exit
from tests.live.agent_processes import SCRIPTS, Agents, agents, said

REMEMBER = SCRIPTS / "remember.py"
STEPS, LAST = 30, 17


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def resumed(job: Agents, round_: int) -> tuple[int, str]:
    step, digest = (job.work / f"resumed.{round_}").read_text().split()
    return int(step), digest


def test_a_killed_worker_goes_on_at_its_last_step(job: Agents) -> None:
    """With three lines: from memory, without anything in storage; and nothing is left in memory when the job is over."""
    (job.work / f"die.{LAST}").touch()

    code, output = said(job.run("--standalone", "--max-restarts", 1, REMEMBER, job.work, STEPS, "lines"))

    assert code == Exit.OK, output
    assert resumed(job, 2) == (LAST, (job.work / f"digest.{LAST}").read_text())
    assert not (job.work / "storage").exists()
    assert not Path((job.work / "memory").read_text()).exists()


@pytest.mark.extended
def test_save_at_breakpoint_needs_no_line(job: Agents) -> None:
    """The helper's script, which saves every ten steps, loses none; and storage has the last step, too."""
    (job.work / f"die.{LAST}").touch()
    flags = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--save-at-breakpoint")

    code, output = said(job.run(*flags, REMEMBER, job.work, STEPS, "helper"))

    assert code == Exit.OK, output
    step, digest = resumed(job, 2)
    # The kill may come before the snapshot of the very last step is complete: that of the one before is, always.
    assert step in (LAST - 1, LAST), output
    assert digest == (job.work / f"digest.{step}").read_text()
    persisted = [m for m in FolderStore(job.work / "storage").complete() if is_snapshot(m)]
    assert f"stored the last snapshot: step={step} " in output, output
    assert [m.step for m in persisted] in ([], [step])  # the helper keeps two, and has saved twice since
