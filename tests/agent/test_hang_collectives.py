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

from rallypoint.agent.node.health.collectives import (
    OPERATIONS,
    Collectives,
    ask,
    called,
    files,
    has_finished,
    read_answer,
    read_collectives,
    waits_elsewhere,
)
from rallypoint.wire.hang import CallSeen, GroupSeen
from rallypoint.wire.progress import ExitStatus, Life
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
class Group:
    def _get_sequence_number_for_group(self):
        return 41

group = Group()
groups._world = types.SimpleNamespace(pg_names={group: "0"}, pg_group_ranks={group: {0: 0, 2: 1}})
sys.modules["_rallypoint_pulse"] = types.SimpleNamespace(point_to_point=sys.argv[5] == "True")
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
def worker(stacks: Path, entries: object, group: str = "group", *, sends: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Have a worker whose recorder listens."""
    command = [sys.executable, "-c", WORKER, str(STARTUP / "recorder.py"), str(stacks), group, json.dumps(entries), str(sends)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def told(stacks: Path) -> dict[Path, Collectives]:
    return asyncio.run(read_collectives([stacks], within=30.0 * PATIENCE))


def call(number: int, operation: str = "all_reduce") -> CallSeen:
    return CallSeen(operation=operation, number=number)


@pytest.mark.parametrize(
    ("entries", "last", "pending"),
    [
        pytest.param([ENTRY], "all_reduce #41 of group 0, not done", (call(41),), id="one that has not ended"),
        pytest.param([{**ENTRY, "retired": True}], "all_reduce #41 of group 0, done", (), id="one that has ended"),
        pytest.param(
            [{**ENTRY, "record_id": 6, "profiling_name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": 3}, ENTRY],
            "send #3 of group 0, not done",
            (call(0, "send"), call(41)),
            id="from one rank to another",
        ),
        pytest.param([], "", (), id="none yet"),
        pytest.param(
            [{**ENTRY, "collective_seq_id": 300, "time_created_ns": 1}, {**ENTRY, "retired": True}],
            "all_reduce #41 of group 0, done",
            (),
            id="of an earlier world, whose group had the same name",
        ),
        pytest.param(
            [{**ENTRY, "collective_seq_id": 7, "time_created_ns": 1}, {**ENTRY, "collective_seq_id": 90, "time_created_ns": 2}],
            "all_reduce #90 of group 0, not done",
            (),
            id="of an earlier world alone",
        ),
        pytest.param(
            [{**ENTRY, "process_group": ["1", ""]}], "all_reduce #41 of group 1, not done", (), id="of a group that is gone"
        ),
    ],
)
def test_a_worker_answers_although_its_main_thread_waits(
    tmp_path: Path, entries: object, last: str, pending: tuple[CallSeen, ...]
) -> None:
    """As often as it is asked; its groups come with what the flight recorder has of their present world."""
    stacks = tmp_path / "stacks.txt"
    groups = (GroupSeen(name="0", first=0, step=2, size=2, called=41, pending=pending),)
    with worker(stacks, entries):
        for _ in range(2):
            assert ask(stacks)
            assert told(stacks) == {stacks: Collectives(last=last, groups=groups)}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("{", id="cut off"),
        pytest.param("[]", id="no object"),
        pytest.param('{"groups": 3}', id="no list"),
        pytest.param('{"groups": [["0", 0, 1]]}', id="too few values"),
        pytest.param('{"groups": [["0", 0, 1, 2, 3, [[1, "x"]]]]}', id="no number"),
        pytest.param('{"groups": [["0", 0, 0, 2, 3, []]]}', id="members that are no distance apart"),
        pytest.param('{"groups": [["0", 0, 1, -2, 3, []]]}', id="a size below nothing"),
    ],
)
def test_an_answer_that_is_none_is_refused(text: str) -> None:
    """A worker is the user's code: what it writes there must not end its agent."""
    with pytest.raises((ValueError, TypeError)):
        read_answer(text)


@pytest.mark.parametrize(
    ("now", "elsewhere"),
    [
        pytest.param("recv (call 7), not returned", True, id="receives: gloo does not record it"),
        pytest.param("recv (call 7), returned", False, id="has received"),
        pytest.param("all_reduce (call 7), not returned", False, id="a collective is recorded"),
        pytest.param("new_group (call 7), not returned", True, id="waits for the store"),
        pytest.param("", False, id="none was called"),
    ],
)
def test_calls_that_are_not_recorded(now: str, elsewhere: bool) -> None:
    """The start-up module has seen them called."""
    assert waits_elsewhere(now) is elsewhere


def test_after_a_send_the_numbers_of_gloo_are_not_reported(tmp_path: Path) -> None:
    """It counts sends and receives, on the two ranks alone; NCCL counts them apart, and records them."""
    stacks, recorded = tmp_path / "a.txt", tmp_path / "b.txt"
    with worker(stacks, [ENTRY], sends=True):
        assert ask(stacks)
        assert told(stacks)[stacks].groups == ()
    with worker(recorded, [ENTRY, {**ENTRY, "is_p2p": True, "p2p_seq_id": 1}], sends=True):
        assert ask(recorded)
        assert told(recorded)[recorded].groups != ()


@pytest.mark.parametrize(
    ("pulse", "left"),
    [
        pytest.param(Pulse(), False, id="never called anything"),
        pytest.param(Pulse(collectives=7, left=7, operation=OPERATIONS.index("destroy_process_group")), True, id="has left"),
        pytest.param(Pulse(collectives=7, left=6, operation=OPERATIONS.index("destroy_process_group")), False, id="leaves"),
        pytest.param(Pulse(collectives=8, left=8, operation=OPERATIONS.index("init_process_group")), False, id="is in another"),
        pytest.param(Pulse(collectives=8, left=8, operation=10_000), False, id="of a later version"),
    ],
)
def test_a_rank_that_has_finished(pulse: Pulse, left: bool) -> None:
    """Its last call has destroyed its groups, or its script has published an exit status."""
    assert has_finished(Life(), pulse) is left
    assert has_finished(Life(exit_status=ExitStatus(pid=7, code=0)), pulse)


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
