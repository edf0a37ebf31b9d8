"""A real job that is paused, saved, resumed and stopped from the command line, on two nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rallypoint.supervision.record import Phase
from tests.live.jobs import Job, cli
from tests.waiting import PATIENCE, eventually

ORDERED = Path(__file__).parent / "scripts" / "ordered.py"
WAIT = ("--timeout", 60 * PATIENCE)


def steps(job: Job) -> set[int | None]:
    status = job.status
    assert status is not None
    return {rank.step for rank in status.ranks}


def told(answer: str, words: str) -> int:
    """The step in an answer of both ranks."""
    found = re.fullmatch(rf"Job counter: 2 of 2 ranks {words} at step (\d+)\n", answer)
    assert found is not None, answer
    return int(found[1])


@pytest.mark.extended
def test_all_ranks_do_as_they_are_told_at_one_step(tmp_path: Path, home: Path) -> None:
    """Paused at one step, saved there, going on in the same processes, and ended well."""
    where: dict[str, Any] = {
        "entrypoint": str(ORDERED),
        "args": [str(tmp_path)],
        "nodes": 2,
        "nproc_per_node": 1,
        "recovery": {"start_method": "spawn"},
    }
    job = Job.write(tmp_path, home, **where).submit()
    job.trains(ranks=2, beyond=5)
    pids = {path.name: path.read_text() for path in tmp_path.glob("pid.*")}

    paused = told(cli("pause", "counter", *WAIT).stdout, "paused")
    saved = told(cli("save", "counter", *WAIT).stdout, "saved")
    assert saved == paused
    assert {path.read_text() for path in tmp_path.glob("saved.*")} == {str(paused)}
    # The agents' reports come by themselves, also while nothing goes on: the last of them tells where all stand.
    eventually(lambda: steps(job) == {paused}, why=job.tell)
    cli("resume", "counter", *WAIT)
    job.trains(ranks=2, beyond=paused + 5)

    assert "all ranks succeeded" in cli("stop", "counter", *WAIT).stdout
    assert job.ends().phase is Phase.SUCCEEDED
    assert {path.name: path.read_text() for path in tmp_path.glob("pid.*")} == pids
    assert len({path.read_text() for path in tmp_path.glob("saved.*")}) == 1


def test_a_script_that_asks_stop_requested_pauses_and_stops(tmp_path: Path, home: Path) -> None:
    """It has boundaries, and nothing that saves when somebody else says so: SIGTERM lets it save, and the job has succeeded."""
    job = Job.write(
        tmp_path, home, 1, 0.05, "saving", endless=True, nodes=1, nproc_per_node=2, recovery={"start_method": "spawn"}
    ).submit()
    job.trains(ranks=2, beyond=2)

    assert cli("pause", "counter", *WAIT).stdout == "Job counter: 2 of 2 ranks paused\n"
    refused = cli("save", "counter", *WAIT, check=False)
    assert refused.returncode == 1
    assert refused.stdout.splitlines() == [
        "Job counter: 0 of 2 ranks saved",
        "  node 0, ranks 0, 1: no save callback registered (State.on_save)",
    ]

    assert "all ranks succeeded" in cli("stop", "counter", *WAIT).stdout
    assert job.ends().phase is Phase.SUCCEEDED
    assert {path.name for path in (tmp_path / "checkpoints").glob("rank-*")} == {"rank-0", "rank-1"}
