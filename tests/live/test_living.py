"""Workers that live through faults, on real processes: who dies is replaced, who lives keeps its process, no bit is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rallypoint.wire.incident import Rung
from rallypoint.wire.status import JobState
from tests.live.agent_processes import SCRIPTS, Agents, agents, said
from tests.waiting import eventually

LIVING = SCRIPTS / "living.py"
STEPS = 12


@dataclass(frozen=True)
class Run:
    """What a run left: by rank, each finished step as (round, process, step, loss); and the digest of the weights."""

    steps: dict[int, list[tuple[int, int, int, str]]]
    digest: str
    output: str

    @classmethod
    def of(cls, folder: Path, output: str) -> Run:
        steps = {}
        for path in folder.glob("steps.*"):
            rows = [line.split() for line in path.read_text().splitlines()]
            steps[int(path.suffix[1:])] = [(int(a), int(b), int(c), d) for a, b, c, d, _ in rows]
        return cls(steps=steps, digest=(folder / "digest").read_text(), output=output)

    def losses(self) -> dict[int, dict[int, str]]:
        """By rank, the loss of each step, as it was last."""
        return {rank: {step: loss for _, _, step, loss in rows} for rank, rows in self.steps.items()}

    def pids(self, rank: int) -> list[int]:
        """The processes of a rank, in order."""
        return list(dict.fromkeys(pid for _, pid, _, _ in self.steps[rank]))

    def worlds(self, rank: int) -> list[int]:
        """The process of a rank in each round in which it trained."""
        return [pid for _, pid in dict.fromkeys((round_, pid) for round_, pid, _, _ in self.steps[rank])]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def trained(job: Agents, name: str, *modes: str, restarts: int = 3, options: tuple[object, ...] = ()) -> Run:
    """Train two ranks on one node to the end."""
    folder = job.work / name
    folder.mkdir()
    arguments = ("--standalone", "--nproc-per-node", 2, "--max-restarts", restarts, *options, LIVING, folder, STEPS, *modes)
    code, output = said(job.run(*arguments))
    assert code == 0, output
    return Run.of(folder, output)


@pytest.mark.parametrize("wrapper", ["ddp", pytest.param("fsdp", marks=pytest.mark.extended)])
def test_no_bit_is_lost_and_who_lives_keeps_its_process(job: Agents, wrapper: str) -> None:
    """A step that raises is run again by the same processes, a rank that is killed is replaced beside the other's process.

    The weights and all losses are those of the undisturbed run, dropout included; at most the failed step is trained twice.
    """
    calm = trained(job, "calm", wrapper, options=("--start-method", "spawn"))  # no worker is started a second time

    run = trained(job, "faults", wrapper, "raise=1@3", "kill=1@6", "kill=0@9", restarts=3)

    assert (run.digest, run.losses()) == (calm.digest, calm.losses()), run.output
    assert run.worlds(0) == [run.pids(0)[0]] * 3 + [run.pids(0)[1]], "killed in the third world"
    assert run.worlds(1) == [run.pids(1)[0]] * 2 + [run.pids(1)[1]] * 2, "its step raised in the first, killed in the second"
    for rank in (0, 1):
        numbers = [step for _, _, step, _ in run.steps[rank]]
        assert len(numbers) <= STEPS + 3, f"rank {rank} went back further than a step: {numbers}"


def test_who_is_ending_is_to_blame_and_not_who_lost_its_connection(job: Agents) -> None:
    """A killed process loses its connections before its end is seen: on a busy machine the other rank is heard first."""
    run = trained(job, "slow end", "slowly-killed=1@3", "reset=0@3")

    (incident,) = [line for line in run.output.splitlines() if "restarting workers: " in line]
    assert "rank 1 (local rank 1) on node 0" in incident
    assert "was killed by SIGKILL" in incident
    assert [len(run.pids(rank)) for rank in (0, 1)] == [1, 2]


@pytest.mark.extended
def test_who_can_never_leave_is_replaced_at_once(job: Agents) -> None:
    """A collective may go on for ever without a connection: that process is not waited for as for one that is busy."""
    calm = trained(job, "calm")

    run = trained(job, "stuck", "stuck=0@6", "kill=1@6", options=("--shutdown-timeout", 3600))

    assert (
        "worker rank=0 cannot recover in place (a collective of round 1 did not return although its connections were closed); "
    ) in run.output
    assert (run.digest, run.losses()) == (calm.digest, calm.losses()), run.output
    assert [len(run.pids(rank)) for rank in (0, 1)] == [2, 2]


@pytest.mark.extended
def test_a_step_that_always_fails_spends_the_budget(job: Agents) -> None:
    """Each try is a fault of a process, whoever lives; the verdict says what was raised."""
    folder = job.work / "bug"
    folder.mkdir()
    code, output = said(
        job.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, LIVING, folder, STEPS, "always=1@3")
    )

    assert code == 1, output
    assert "no restarts left (limit: 2)" in output
    assert "ValueError: loss is nan" in output
    pids = {line.split()[1] for line in (folder / "steps.0").read_text().splitlines()}
    assert len(pids) == 1


@pytest.mark.extended
def test_a_world_shrinks_and_grows_around_workers_that_live(tmp_path: Path) -> None:
    """Of two nodes one is lost, and later there is another: the workers of the first train on in the same processes.

    The global batch stays what it is, and nobody trains more than a step twice.
    """
    with agents(tmp_path, torch=True) as job:
        (job.work / "slowly").touch()
        job.write_plan(
            entrypoint=str(LIVING), args=(str(job.work), "400"), min_nodes=1, max_nodes=2, nproc_per_node=1, last_call=60.0
        )
        job.coordinator()
        job.node(0)
        second = job.node(1)

        def at(rank: int, size: int) -> list[str]:
            path = job.work / f"steps.{rank}"
            return [line for line in path.read_text().splitlines() if line.endswith(f" {size}")] if path.exists() else []

        eventually(lambda: len(at(0, 2)) > 3, why="two ranks train")
        second.kill()
        eventually(lambda: len(at(0, 1)) > 3, why="one trains on")
        before = len(at(0, 2))
        job.node(1, incarnation=2)
        eventually(lambda: len(at(0, 2)) > before + 3, why="two train again")
        (job.work / "slowly").unlink()
        status = job.published(JobState.SUCCEEDED, 3)

    run = Run.of(job.work, "")
    assert len(run.pids(0)) == 1
    assert {i.rung for i in status.incidents} == {Rung.ELASTIC_TRAINING}
    numbers = [step for _, _, step, _ in run.steps[0]]
    assert sorted(set(numbers)) == list(range(400))
    assert len(numbers) <= 402
