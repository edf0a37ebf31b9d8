"""Workers that are done end, with the status of their script, whatever torch still does in their process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.exits import Exit
from tests.live.agent_processes import SCRIPTS, Agents, agents, said
from tests.live.test_zygote import standing_by

PENDING = SCRIPTS / "pending.py"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def test_a_group_whose_last_holder_is_a_reducer_ends(job: Agents) -> None:
    """Here the race between the destructor of the group and its thread is always lost, unless the GIL is released."""
    run = job.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 0, PENDING, job.work)

    code, output = said(run)

    assert (code, output.count("is done")) == (Exit.OK, 2), output


def test_a_recovered_run_ends(job: Agents) -> None:
    """A fork has imported torch.distributed.nn before it had a group, so nothing keeps the group by accident."""
    run = job.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, PENDING, job.work, 1)
    standing_by(run.pid, set(), 3)
    (job.work / "kill").touch()

    code, output = said(run)

    # Rank 0 may be through with round 1, too: its collective fails when rank 1 is killed.
    _, regroup, after = output.partition("regroup: rank 1")
    assert (code, bool(regroup), after.count("is done")) == (Exit.OK, True, 2), output
