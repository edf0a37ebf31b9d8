"""What an agent makes of what its probes say, and what it gives them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rallypoint.agent.workers.spawner import Command
from rallypoint.capabilities.node_check.node import Checker, Seen, probe_env, read_probe
from rallypoint.wire.check import CheckReport, CheckTask, ProbeState
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import Continue
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import replaced
from tests.capabilities.context import node_context
from tests.waiting import eventually_async

TASK = CheckTask(term=2, number=7, store="[fd00::1]:4711", group_rank=1, first_rank=2, world_size=4, limit=60.0)
PLAN = Plan(
    name="digits",
    role="trainer",
    min_nodes=2,
    max_nodes=2,
    nproc_per_node=2,
    entry=Entry.SCRIPT,
    entrypoint="t.py",
    env={"A": "1"},
)


@pytest.mark.parametrize(
    ("output", "stage", "figures"),
    [
        pytest.param(b"", "start", False, id="nothing"),
        pytest.param(b'{"stage": "compute"}\n{"stage": "connect"}\n', "connect", False, id="the last stage counts"),
        pytest.param(b'warning: slow\n{"stage": "compute"}\n{"sta', "compute", False, id="other lines, and half a one"),
        pytest.param(b'[1]\n"stage"\n{"stage": 3}\n', "start", False, id="JSON that is none of its words"),
        pytest.param(b'{"compute": 1, "transfer": 2.5, "moved": 10, "latency": 0}\n', "start", True, id="figures"),
        pytest.param(b'{"compute": 1}\n', "start", True, id="a probe that only computes"),
        pytest.param(b'{"compute": -1}\n{"compute": "fast"}\n{"compute": true}\n', "start", False, id="figures that are none"),
    ],
)
def test_the_words_of_a_probe(output: bytes, stage: str, *, figures: bool) -> None:
    """A user's program may print whatever it likes beside them."""
    seen = read_probe(output)
    assert (seen.stage, seen.figures is not None) == (stage, figures)


def test_a_probe_that_measures_only_some_things_is_read_with_zeros() -> None:
    """What a probe does not measure counts as nothing measured."""
    assert read_probe(b'{"compute": 1.5}\n') == Seen(figures={"compute": 1.5, "transfer": 0, "moved": 0, "latency": 0})


def test_the_environment_of_a_probe_is_that_of_a_small_world() -> None:
    """With the plan's own variables, and without the job's secret."""
    told = probe_env({"PATH": "/bin", "RALLYPOINT_SECRET": "x"}, PLAN, TASK, 1, fd=None)

    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"], told["GROUP_RANK"]) == ("3", "4", "1", "1")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"], told["A"], told["PATH"]) == ("fd00::1", "4711", "1", "/bin")
    assert "RALLYPOINT_SECRET" not in told
    assert json.loads(told["RALLYPOINT_CHECK"]) == {"whole": False, "limit": 60.0, "key": "check-2-7", "fd": None}


def test_the_check_is_told_what_to_speak() -> None:
    """HCCL and its module for NPUs; for NVIDIA's GPUs nothing: that is what a probe takes by itself."""
    npus, gpus = (replaced(PLAN, accelerator=kind) for kind in ("ascend-npu", "nvidia.com/gpu"))
    task = CheckTask(number=1, term=1, store="127.0.0.1:1", first_rank=0, world_size=2, group_rank=0, whole=False, limit=1.0)

    told = [json.loads(probe_env({}, plan, task, 0, fd=None)["RALLYPOINT_CHECK"]) for plan in (npus, gpus)]

    assert told[0]["device"] == ["npu", "hccl", "torch_npu"]
    assert "device" not in told[1]


OVER = {ProbeState.OK, ProbeState.FAILED}


class Probes:
    """Test processes that end at once: each writes the same line and exits with its code."""

    def __init__(self, *codes: int, line: bytes) -> None:
        self.codes, self.line, self.started = codes, line, 0

    async def spawn(self, command: Command, ended: Callable[[int], None]) -> int:
        assert command.stdout is not None
        await asyncio.to_thread(os.write, command.stdout, self.line)
        code, self.started = self.codes[self.started], self.started + 1
        ended(code)
        return 2**22 + self.started  # no process has this id


async def checked(folder: Path, probes: Probes) -> CheckReport:
    """Return what a node reports of one task."""
    plan = dataclasses.replace(PLAN, nproc_per_node=len(probes.codes), env={})
    checker = Checker(node_context(plan=plan, folder=folder, spawner=probes))
    await checker.begin()
    try:
        checker.on_reply(replaced(Continue(fence=Fence(attempt=1, term=2, round=0)), check=TASK), waiting=True)

        def over() -> bool:
            told = checker.urgent()
            return told is not None and told.state in {ProbeState.OK, ProbeState.FAILED}

        await eventually_async(over, why="the test processes end")
        found = checker.report(()).check
    finally:
        await checker.close()
    assert found is not None
    assert (found.term, found.number) == (TASK.term, TASK.number)
    return found


async def test_a_node_runs_one_test_process_for_each_worker(tmp_path: Path) -> None:
    """Their figures are the node's."""
    probes = Probes(0, 0, line=b'{"compute": 1.5, "transfer": 2.5, "moved": 10, "latency": 0.5}\n')

    found = await checked(tmp_path, probes)

    assert (found.state, probes.started) == (ProbeState.OK, 2)
    assert (found.compute, found.transfer, found.moved, found.latency) == (1.5, 2.5, 10, 0.5)


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        pytest.param((3,), "stage compute: exited with code 3", id="one process"),
        pytest.param((0, 3), "local rank 1: stage compute: exited with code 3", id="the second of two"),
    ],
)
async def test_a_failed_test_process_is_named_where_there_are_several(
    tmp_path: Path, codes: tuple[int, ...], error: str
) -> None:
    """The error has the stage and the exit; the local rank only if the node has more than one worker."""
    found = await checked(tmp_path, Probes(*codes, line=b'{"stage": "compute"}\n'))

    assert (found.state, found.own, found.error) == (ProbeState.FAILED, True, error)
