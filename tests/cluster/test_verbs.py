"""`rallypoint pause`, `resume`, `save` and `stop` from the command line: pods do what processes of this machine do."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.status import JobStatus, Outcome
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import Site, emulated
from tests.emulator.running import Running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

ORDERED = (Path(__file__).parents[1] / "live" / "scripts" / "ordered.py").read_text()

#: Why a script without a state cannot be asked to save.
UNNAMED = "no save callback registered (State.on_save)"


async def asked(site: Site, job: Job, verb: str) -> tuple[int, str]:
    """Ask as a person does; return the exit code and what was printed."""
    words = ("rallypoint.cli.main", verb, job.name, "--timeout", str(60 * PATIENCE), *site.where.options())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    told, _ = await asyncio.wait_for(process.communicate(), 120 * PATIENCE)
    assert process.returncode is not None
    return process.returncode, told.decode()


def saves(folder: Path) -> list[str]:
    """Return at which step each rank saved last."""
    return [path.read_text() for path in sorted(folder.glob("saved.*"))]


def pids(status: JobStatus) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in status.ranks}


@pytest.mark.sample("emulator")
@pytest.mark.extended
async def test_a_job_is_paused_resumed_and_stopped(site: Site) -> None:
    """On all nodes, in the same processes; what the script cannot do each node says for its ranks; a stop is a success."""
    async with submitted(site, site.job(nodes=2, env={"MODE": "ordered"})) as job:
        before = await job.trains(ranks=2, beyond=3)

        assert await asked(site, job, "pause") == (0, "Job counter: 2 of 2 ranks paused\n")
        code, told = await asked(site, job, "save")
        assert (code, told.splitlines()) == (
            1,
            ["Job counter: 0 of 2 ranks saved", f"  node 0, rank 0: {UNNAMED}", f"  node 1, rank 1: {UNNAMED}"],
        )
        assert await asked(site, job, "resume") == (0, "Job counter: 2 of 2 ranks resumed\n")
        after = await job.trains(ranks=2, beyond=max(rank.step or 0 for rank in before.ranks) + 5)
        assert (pids(after), after.fence.round) == (pids(before), 1)
        code, told = await asked(site, job, "stop")
        record = await job.over()

    assert (code, "all ranks succeeded" in told) == (0, True), told
    assert (record.phase, record.retries, record.incidents) == (Phase.SUCCEEDED, 0, ())
    assert record.verdict is not None
    assert record.verdict.outcome is Outcome.SUCCEEDED


@pytest.mark.extended
async def test_pods_save_at_one_step(torch_emulator: Running, tmp_path: Path) -> None:
    """With the five lines, all ranks pause, save and stop after the same step, in pods as on one machine (tests/live)."""
    async with emulated(torch_emulator, tmp_path).opened() as place:
        command = [place.python, "-c", ORDERED, str(tmp_path)]
        spec = place.job(nodes=2, entrypoint={"command": command}, recovery={"start_method": "spawn"})
        async with submitted(place, spec) as job:
            await job.trains(ranks=2, beyond=3)
            code, paused = await asked(place, job, "pause")
            assert code == 0, paused
            code, saved = await asked(place, job, "save")
            assert code == 0, saved
            step = paused.removeprefix("Job counter: 2 of 2 ranks paused at step ")
            assert saved == f"Job counter: 2 of 2 ranks saved at step {step}"
            assert saves(tmp_path) == [step.strip()] * 2
            code, told = await asked(place, job, "stop")
            record = await job.over()

    assert (code, record.phase) == (0, Phase.SUCCEEDED), told
    last = saves(tmp_path)
    assert last[0] == last[1]
