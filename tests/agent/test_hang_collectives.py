"""Which collective a worker has called last: its recorder answers by itself, whatever its main thread does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rallypoint.agent.node.health.collectives import OPERATIONS, ask, called, files, read_collectives
from rallypoint.wire.pulse import Pulse
from tests.waiting import PATIENCE, eventually

STARTUP = Path(__file__).parents[2] / "rallypoint" / "training" / "startup"

ENTRY = {
    "record_id": 5,
    "time_created_ns": 7,
    "profiling_name": "gloo:all_reduce",
    "process_group": ["0", "default_pg"],
    "collective_seq_id": 41,
    "state": "scheduled",
    "retired": False,
}

#: A worker whose main thread waits for ever, with a stand-in for torch whose flight recorder has these entries.
WORKER = """
import importlib.util, json, sys, threading, types
groups, torch_side = types.ModuleType("groups"), types.ModuleType("torch_side")
groups.is_initialized = lambda: sys.argv[3] == "group"
torch_side._dump_fr_trace_json = lambda: json.dumps({"entries": json.loads(sys.argv[4])}).encode()
sys.modules["torch.distributed.distributed_c10d"] = groups
sys.modules["torch._C._distributed_c10d"] = torch_side
spec = importlib.util.spec_from_file_location("recorder", sys.argv[1])
recorder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recorder)
recorder.listen(sys.argv[2])
print("listens", flush=True)
threading.Event().wait()
"""


@contextmanager
def worker(stacks: Path, entries: object, group: str = "group") -> Iterator[subprocess.Popen[str]]:
    """Have a worker whose recorder listens."""
    command = [sys.executable, "-c", WORKER, str(STARTUP / "recorder.py"), str(stacks), group, json.dumps(entries)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def told(stacks: Path) -> dict[Path, str]:
    return asyncio.run(read_collectives([stacks], within=30.0 * PATIENCE))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([ENTRY], "all_reduce #41 of group 0, not done", id="one that has not ended"),
        pytest.param([{**ENTRY, "retired": True}], "all_reduce #41 of group 0, done", id="one that has ended"),
        pytest.param(
            [{**ENTRY, "record_id": 6, "profiling_name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": 3}, ENTRY],
            "send #3 of group 0, not done",
            id="from one rank to another",
        ),
        pytest.param([], "", id="none so far"),
    ],
)
def test_a_worker_answers_although_its_main_thread_waits(tmp_path: Path, entries: object, expected: str) -> None:
    """As often as it is asked."""
    stacks = tmp_path / "stacks.txt"
    with worker(stacks, entries):
        assert ask(stacks)
        assert told(stacks) == {stacks: expected}
        assert ask(stacks)
        assert told(stacks) == {stacks: expected}


def test_whoever_has_no_group_is_not_asked(tmp_path: Path) -> None:
    """Nor is one that has ended, or something that is no pipe; the agent waits for none of them."""
    stacks, dead, other = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"
    files(other)[0].write_text("a file")
    with worker(dead, []) as process:
        process.kill()
        process.wait()
        eventually(lambda: not ask(dead))
    with worker(stacks, [], group="none"):
        assert not ask(stacks)
    assert not ask(other)
    assert asyncio.run(read_collectives([], within=0.0)) == {}


def test_who_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """A process whose lock is held tells nothing."""
    stacks = tmp_path / "stacks.txt"
    os.mkfifo(files(stacks)[0])

    assert asyncio.run(read_collectives([stacks], within=0.05)) == {}


@pytest.mark.parametrize(
    ("pulse", "expected"),
    [
        pytest.param(Pulse(), "", id="none"),
        pytest.param(Pulse(collectives=7, left=6, operation=0), "all_reduce (call 7), not returned", id="waits"),
        pytest.param(Pulse(collectives=7, left=7, operation=8), "barrier (call 7), returned", id="returned"),
        pytest.param(Pulse(collectives=7, left=7, operation=10_000), "", id="of a later version"),
    ],
)
def test_the_pulse_knows_the_last_call(pulse: Pulse, expected: str) -> None:
    """It is read from memory, so a stopped process tells it, too."""
    assert called(pulse) == expected


def test_the_names_are_those_of_the_startup_module() -> None:
    """They are numbers in memory."""
    source = (STARTUP / "watching.py").read_text()
    body = source[source.index("OPERATIONS = (") : source.index(")", source.index("OPERATIONS = ("))]

    assert tuple(line.strip().strip('",') for line in body.splitlines()[1:]) == OPERATIONS
