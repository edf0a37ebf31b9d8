"""A sample of the loss matrix (`python -m tests.cluster.loss_matrix` runs all of it), and losses on a real cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import real
from tests.cluster.jobs import submitted
from tests.cluster.loss_hands import Emulated, Hooked, Machines, World, worlds
from tests.cluster.loss_matrix import CELLS, grant, run_emulated
from tests.cluster.sites import ClusterSite, emulated
from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import running
from tests.live.light import without_torch
from tests.waiting import PATIENCE

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

SAMPLE = (
    "a/training/pod",
    "a/replacement/process",
    "a/deletion/process",
    "b/submission/process",
    "b/full/trigger",
)

#: Read here: the environment of a test has none of our variables.
NODE_KILL = os.environ.get("RALLYPOINT_TEST_NODE_KILL", "")
NO_COMMAND = "RALLYPOINT_TEST_NODE_KILL is not set; expected a command that powers a node off and on (CONTRIBUTING.md)"


@pytest.mark.extended
@pytest.mark.parametrize("name", SAMPLE)
def test_a_machine_dies_and_the_job_goes_on(name: str, tmp_path: Path) -> None:
    """It trains again or has its verdict; no reset, no two worlds, nothing left, no status that is stale without a word."""
    cell = next(cell for cell in CELLS if cell.name == name)

    result = run_emulated(cell, tmp_path, patience=PATIENCE)

    assert not result.wrong, "\n".join((*result.wrong, *(f"{at:7.2f}  {text}" for at, text in result.events)))


@contextlib.contextmanager
def power_cuts(folder: Path) -> Iterator[tuple[ClusterSite, Machines]]:
    """Yield an emulated cluster of three machines, whose clocks are real, and whoever kills them."""
    image = {"PYTHONPATH": without_torch(folder)}
    nodes = tuple(NodeOptions(name=f"node-{letter}") for letter in "abc")
    with running(Options(rbac=True, nodes=nodes, image_env=image, speed=1.0)) as cluster:
        yield emulated(cluster, folder), Emulated(cluster)


@pytest.fixture(params=["emulator", pytest.param("cluster", marks=pytest.mark.cluster)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[ClusterSite, Machines]]:
    """A namespace whose supervisor may look at machines, and whoever kills those."""
    with contextlib.ExitStack() as stack:
        if request.param == "cluster":
            site = real(tmp_path)
            if not NODE_KILL:
                pytest.skip(NO_COMMAND)
            hands: Machines = Hooked(NODE_KILL)
        else:
            site, hands = stack.enter_context(power_cuts(tmp_path))
        async with site.opened():
            await grant(site)
            yield site, hands


@pytest.mark.extended
@pytest.mark.parametrize("part", ["coordinator", "node"])
async def test_the_power_of_a_machine_fails(place: tuple[ClusterSite, Machines], part: str) -> None:
    """Training goes on without a reset, and the machine is usable again once it is back."""
    site, machines = place
    spec = site.job(nodes="1:2", fault_tolerance={"retry_limit": 0}, recovery={"node_replacements": 10})
    async with submitted(site, spec) as job:
        before = await job.trains(ranks=2)
        step = max(rank.step or 0 for rank in before.ranks)
        pod = (await site.living(job.name, part))[0]
        machine = pod["spec"]["nodeName"]
        await machines.kill(machine)
        try:
            await job.until(lambda record: any(machine in incident.reason for incident in record.incidents), timeout=90.0)
            await job.trains(ranks=2, beyond=step)
        finally:
            await machines.restore(machine)
        record = await job.record()
        assert (record.attempt, record.retries) == (1, 0)


def world(round_: int, *times: tuple[float, ...]) -> World:
    return World(attempt=1, round=round_, size=len(times), ranks=dict(enumerate(times)))


def test_steps_count_once_every_rank_has_made_them() -> None:
    """A rank that is missing makes no step, and neither does the world."""
    assert world(1, (1.0, 2.0, 3.0), (1.1, 2.1, 3.1)).steps_after(1.5, 2) == 3.1
    assert world(1, (1.0, 2.0, 3.0), (1.1,)).steps_after(1.5, 2) is None


def test_two_worlds_and_a_rank_that_is_there_twice_are_found(tmp_path: Path) -> None:
    """A step of a round after the first one of the next, and two processes of one rank."""
    for name, times in {"1.1.0.1.7": (1.0, 5.0), "1.2.0.1.8": (4.0, 6.0), "1.2.0.1.9": (4.5,)}.items():
        (tmp_path / f"world.{name}").write_text("".join(f"{time} 1\n" for time in times))

    _, wrong = worlds(tmp_path)

    assert wrong == [
        "rank 0 made steps twice in round 2 of attempt 1",
        "round 1 made a step 0.500 s after the first of round 2: two worlds",
    ]
