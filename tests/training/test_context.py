from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.training.context import JobContext, read_job
from rallypoint.wire.codec import WireError
from rallypoint.wire.fence import Fence

ENVIRON = {
    "RALLYPOINT_JOB": "digits",
    "RALLYPOINT_JOB_MARK": "ab12/1/0/0",
    "RALLYPOINT_ATTEMPT": "2",
    "RALLYPOINT_TERM": "1",
    "RALLYPOINT_ROUND": "3",
    "RALLYPOINT_CHECKPOINT_DIR": "/data/digits",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "TORCHELASTIC_RESTART_COUNT": "4",
}


def test_a_worker_knows_its_place():
    """Name, fence, ranks and folder are read from the environment of a worker."""
    expected = JobContext(
        name="digits",
        uid="ab12",
        fence=Fence(attempt=2, term=1, round=3),
        rank=5,
        local_rank=1,
        world_size=8,
        restart_count=4,
        checkpoint_dir=Path("/data/digits"),
    )

    assert read_job(ENVIRON) == expected


def test_outside_rallypoint_there_is_no_job():
    """Under plain torchrun there is no job, whatever else is set."""
    assert read_job({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_what_may_be_absent():
    """An agent started by hand gives no uid and no folder."""
    few = {key: value for key, value in ENVIRON.items() if key not in {"RALLYPOINT_JOB_MARK", "RALLYPOINT_CHECKPOINT_DIR"}}
    job = read_job(few)

    assert job is not None
    assert (job.uid, job.checkpoint_dir) == ("", None)


@pytest.mark.parametrize("value", [pytest.param(None, id="missing"), pytest.param("-1", id="negative"), "two"])
def test_a_broken_environment_names_the_variable(value):
    """An error names the variable and what is allowed."""
    broken = {**ENVIRON, "RALLYPOINT_ROUND": value}
    if value is None:
        del broken["RALLYPOINT_ROUND"]

    with pytest.raises(WireError, match=r"environment variable RALLYPOINT_ROUND: .* expected a decimal number"):
        read_job(broken)
