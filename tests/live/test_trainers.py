"""The trainers of HuggingFace and Lightning, as they are released: what a fault costs them here, and what they tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.status import JobState, JobStatus
from tests.live.agent_processes import SCRIPTS, Agents, agents, said
from tests.live.test_living import Run
from tests.waiting import eventually

STEPS = 16
TRAINERS = [pytest.param("hf_trainer.py", id="huggingface"), pytest.param("lightning_trainer.py", id="lightning")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def trained(job: Agents, name: str, script: str, *modes: str) -> tuple[Run, Path]:
    """Train two ranks on one node to the end."""
    folder = job.work / name
    folder.mkdir()
    code, output = said(
        job.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 5, SCRIPTS / script, folder, STEPS, *modes)
    )
    assert code == 0, output
    return Run.of(folder, output), folder


@pytest.mark.extended
@pytest.mark.parametrize("script", TRAINERS)
def test_a_trainer_lives_through_the_loss_of_a_worker(job: Agents, script: str) -> None:
    """One of two workers is killed, in the middle of an epoch: the other's process trains on, and no bit is lost.

    A step that raises is run again by the same processes, before; later both are killed, and those that take their places go on
    from their memory. What the trainer logs is what it would have logged.
    """
    calm, calm_folder = trained(job, "calm", script)

    run, folder = trained(job, "faults", script, "raise=1@3", "kill=1@7", "kill=0@12", "kill=1@12")

    assert (run.digest, run.losses()) == (calm.digest, calm.losses()), run.output
    assert run.worlds(0)[:3] == [run.pids(0)[0]] * 3, "rank 0 lived through the first two faults"
    assert run.worlds(1)[:3] == [run.pids(1)[0]] * 2 + [run.pids(1)[1]], "its step raised, then it was killed"
    for rank in (0, 1):
        assert len(run.steps[rank]) <= STEPS + 4, f"rank {rank} lost more than the step that was being computed"
    for told in ("log.json", "validated.0"):
        if (calm_folder / told).exists():
            assert json.loads((folder / told).read_text()) == json.loads((calm_folder / told).read_text())


@pytest.mark.extended
def test_a_script_that_knows_nothing_of_us_tells_its_step_its_loss_and_the_time_left(tmp_path: Path) -> None:
    """HuggingFace's Trainer finds the agent by itself, where Kubeflow's controller would be."""
    with agents(tmp_path, torch=True) as job:
        job.write_plan(entrypoint=str(SCRIPTS / "hf_plain.py"), args=(str(job.work),), nproc_per_node=1)
        job.coordinator()
        job.node(0)

        def far() -> JobStatus | None:
            status = job.status()
            told = status is not None and status.progress.step is not None and "loss" in status.progress.metrics
            return status if told else None

        status = eventually(far, timeout=60.0, why="the trainer tells its step and its loss")
        (job.work / "enough").touch()
        job.published(JobState.SUCCEEDED, 1)

    progress = status.progress
    assert progress.step is not None
    assert progress.step > 0
    assert progress.metrics["total_steps"] == 100_000
    assert progress.metrics["eta_seconds"] > 0
    assert progress.metrics["epoch"] > 0
