from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from rallypoint.checkpoint.errors import CheckpointError, DamagedCheckpointError, NoRoomError
from rallypoint.checkpoint.free_memory import free_memory, require_memory
from rallypoint.checkpoint.memory import everything, held, pinned
from rallypoint.training import Snapshots, weights_digest
from rallypoint.training.snapshots.copy_threads import CopyThreadPool
from rallypoint.training.snapshots.memory import SnapshotMemory, Writer
from rallypoint.training.snapshots.parts import opened
from rallypoint.wire import env
from rallypoint.wire.fence import Fence
from tests.training.states import make, spoil, step
from tests.waiting import PATIENCE

FENCE = Fence(attempt=1, term=1, round=1)


def writer(round_=1, rank=0):
    return Writer(job="j", fence=FENCE.with_round(round_), rank=rank, local_rank=rank, world_size=1)


def test_training_goes_on_at_the_last_step(snapshots):
    """Weights, optimizer, buffers and random numbers are those of the last save; the next step gives the same bits."""
    state = make()
    before = snapshots(state)
    assert before.load() is None
    for number in range(1, 4):
        step(state)
        assert before.save(number)
    before.wait()
    step(state)
    expected = weights_digest(state["model"]), torch.rand(1).item()

    fresh = make(seed=9)
    assert snapshots(fresh).load() == 3
    step(fresh)

    assert (weights_digest(fresh["model"]), torch.rand(1).item()) == expected


def test_a_lazy_copy_is_of_the_step_it_was_taken_at(node, monkeypatch):
    """The next optimizer step waits until its parameters are copied, however slow the copy is."""
    state = make()
    step(state)
    memory = SnapshotMemory(node, writer())
    may_copy, copying = threading.Event(), threading.Event()
    real = memory._crew.copy

    def slow(pieces, into, marks=None):
        if pieces and threading.current_thread() is not threading.main_thread():
            copying.set()
            may_copy.wait(10 * PATIENCE)
        real(pieces, into, marks)

    monkeypatch.setattr(memory._crew, "copy", slow)
    expected = weights_digest(state["model"])
    memory.take(1, state)
    assert copying.wait(10 * PATIENCE)
    threading.Timer(0.05, may_copy.set).start()
    step(state)
    assert weights_digest(state["model"]) != expected
    memory.wait()

    fresh = make(seed=9)
    restored = Snapshots(fresh)
    assert restored.load() == 1
    assert weights_digest(fresh["model"]) == expected
    restored.close()
    memory.close()


def test_buffers_that_a_forward_pass_changes_are_copied_at_once(node, monkeypatch):
    """Running statistics are no optimizer's: they are as they were at the step boundary."""
    state = make()
    step(state)
    memory = SnapshotMemory(node, writer())
    seen = []
    real = memory._crew.copy

    def watched(pieces, into, marks=None):
        seen.append({piece.source.data_ptr() for piece in pieces})
        real(pieces, into, marks)

    monkeypatch.setattr(memory._crew, "copy", watched)
    memory.take(1, state)
    memory.wait()

    norm = state["model"][1]
    assert norm.running_mean.data_ptr() in seen[0]
    assert norm.weight.data_ptr() in seen[1]
    memory.close()


def test_there_is_always_a_complete_one(node):
    """While the next is written the last stays, and two buffers take turns."""
    state = {"x": torch.zeros(10)}
    memory = SnapshotMemory(node, writer())
    for number in range(5):
        state["x"].fill_(number)
        memory.take(number, state)
        steps = [one.part.step for one in memory.held()]
        assert steps == ([number, number - 1] if number else [0])
    assert len(list((node / "rank-0").glob("*.bin"))) == 2
    memory.close()


def test_a_snapshot_that_is_read_is_not_overwritten(node):
    """None is skipped while one is persisted: the third buffer takes its place."""
    state = {"x": torch.zeros(10)}
    memory = SnapshotMemory(node, writer(), buffers=3)
    memory.take(1, state)
    first = memory.held()[0]
    with pinned(first):
        for number in range(2, 8):
            memory.take(number, state)
            memory.wait()
        assert [one.part.step for one in memory.held()] == [7, 6, 1]
    memory.take(8, state)
    memory.wait()
    assert 1 not in [one.part.step for one in memory.held()]
    with pytest.raises(DamagedCheckpointError), pinned(first):
        pass
    memory.close()


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from rallypoint.training.snapshots.memory import SnapshotMemory, Writer
from rallypoint.wire.fence import Fence

writer = Writer(job="j", fence=Fence(attempt=1, term=1, round=1), rank=0, local_rank=0, world_size=1)
memory = SnapshotMemory(Path(sys.argv[1]), writer)
state = {"x": torch.full((1 << 20,), 1.0)}
memory.take(1, state)
memory.take(2, state)
memory.wait()
real = memory._crew.copy

def die(pieces, into, marks=None):
    into[: 1 << 20].fill_(77)
    os.kill(os.getpid(), signal.SIGKILL)

memory._crew.copy = die
memory.take(3, state)
"""


def test_a_writer_that_is_killed_mid_copy_leaves_the_one_before(node):
    """The torn one has no header; the successor goes on with the same buffers."""
    code = subprocess.run([sys.executable, "-c", KILLED, str(node)], check=False, timeout=60 * PATIENCE).returncode
    assert code == -signal.SIGKILL
    assert [one.part.step for one in held(node / "rank-0")] == [2]

    state = {"x": torch.zeros(1 << 20)}
    successor = Snapshots(state)
    assert successor.load() == 2
    assert state["x"].unique().tolist() == [1.0]
    assert successor.save(3)
    successor.close()


def test_a_flipped_bit_is_found_and_the_one_before_is_taken(snapshots, node, caplog):
    """And it is said which file is damaged."""
    state = {"x": torch.arange(1000.0)}
    before = snapshots(state)
    before.save(1)
    before.save(2)
    before.wait()
    newest = everything(node)[0]
    spoil(newest.path)

    assert snapshots(state).load() == 1
    assert str(newest.path) in caplog.text


def test_a_truncated_buffer_is_passed_over(snapshots, node):
    """Whatever is in its header."""
    state = {"x": torch.arange(10000.0)}
    before = snapshots(state)
    before.save(1)
    before.save(2)
    before.wait()
    os.truncate(everything(node)[0].path, 100)

    assert snapshots({"x": torch.zeros(10000)}).load() == 1


def test_a_header_that_nobody_can_read_is_none(snapshots, node):
    """It is not taken for anything."""
    state = {"x": torch.arange(10.0)}
    before = snapshots(state)
    before.save(1)
    before.wait()
    everything(node)[0].path.with_suffix(".json").write_text('{"step": 3')

    assert snapshots(state).load() is None


def test_a_writer_of_an_older_round_is_refused(node):
    """It is left over, and what the newer one has written stays."""
    state = {"x": torch.zeros(10)}
    old, new = SnapshotMemory(node, writer(1)), SnapshotMemory(node, writer(2))
    old.take(50, state)
    old.wait()
    new.take(7, state)
    new.wait()
    with pytest.raises(CheckpointError, match=r"newer fencing token 1\.1\.2 .* this worker has the older token 1\.1\.1"):
        old.take(51, state)
    assert [one.part.step for one in held(node / "rank-0")] == [7, 50]
    old.close()
    new.close()


def test_a_newer_round_wins_over_a_higher_step(snapshots, node, monkeypatch):
    """As with checkpoints: the order is (fence, step)."""
    state = {"x": torch.zeros(10)}
    first = snapshots(state)
    first.save(50)
    first.wait()
    monkeypatch.setenv(env.ROUND, "2")
    state["x"].fill_(7)
    first.save(7)
    first.wait()

    assert snapshots(state).load() == 7


def test_no_room_is_told_with_what_is_missing(snapshots, node, monkeypatch, caplog):
    """Training goes on without snapshots, and the message counts bytes."""
    state = {"x": torch.zeros(1 << 20)}
    asked = snapshots(state)
    asked.wait()
    monkeypatch.setattr(
        "rallypoint.training.snapshots.buffers.require_memory",
        lambda folder, size, what: require_memory(folder, size + (1 << 60), what),
    )
    state["x"] = torch.zeros(1 << 22)

    assert not asked.save(1)
    assert not asked.save(2)
    assert caplog.text.count("this worker takes no in-memory snapshots") == 1
    assert " missing" in caplog.text


def test_a_full_file_system_is_no_crash(tmp_path, node):
    """Room is allocated before it is written to, so that no signal can end the process."""
    memory = SnapshotMemory(node, writer())
    buffer = memory._buffers._buffers[0]
    with pytest.raises(NoRoomError, match="not enough space for"):
        buffer.reserve(1 << 62)
    memory.close()


def test_the_control_groups_limit_counts(tmp_path):
    """What is shared in memory is the group's; its cache of files is not in the way."""
    groups = tmp_path / "cgroup"
    groups.mkdir()
    (groups / "memory.max").write_text("1000\n")
    (groups / "memory.current").write_text("900\n")
    (groups / "memory.stat").write_text("anon 500\ninactive_file 300\nactive_file 50\n")
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    50 kB\n")

    assert free_memory(tmp_path, cgroups=groups, meminfo=tmp_path / "none") == 450
    assert free_memory(tmp_path, cgroups=tmp_path / "none", meminfo=tmp_path / "meminfo") == 51200


BAD = [
    pytest.param({"persist_every": 1}, "storage: is missing; pass a folder or a URL", id="nowhere"),
    pytest.param({"keep": 0}, "keep: 0 is not allowed", id="keep"),
    pytest.param({"persist_every": -1}, "persist_every: -1 is not allowed", id="negative"),
    pytest.param({"keep_every": True}, "keep_every: True is not allowed", id="a bool"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_wrong_arguments_are_refused(options, said):
    """With the name, the value and what is allowed."""
    with pytest.raises(CheckpointError, match=said):
        Snapshots({}, **options)


def test_every_dtype_and_layout_comes_back(snapshots):
    """Strided, empty, of no dimension, of half precision, and what is no tensor at all."""
    state = {
        "strided": torch.arange(12.0).view(3, 4).t(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "bits": torch.tensor([True, False, True]),
        "plain": {"a": [1, (2, "x")]},
    }
    writing = snapshots(state)
    writing.save(1)
    writing.wait()
    fresh = {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for name, value in state.items()}
    made = snapshots(fresh)
    assert made.load() == 1

    assert repr(fresh) == repr(state)


def test_the_digest_sees_each_bit_and_each_row():
    """A flipped bit anywhere, two rows that changed places, a row of another snapshot."""
    crew = CopyThreadPool(2)
    data = torch.randint(0, 255, (64 * 8192,), dtype=torch.uint8)
    digest = crew.digest(data)
    for place, bit in ((0, 1), (8191, 128), (300_000, 4), (64 * 8192 - 1, 1)):
        data[place] ^= bit
        assert crew.digest(data) != digest
        data[place] ^= bit
    swapped = data.view(-1, 8192)[[1, 0, *range(2, 64)]].reshape(-1)

    assert crew.digest(swapped) != digest
    assert crew.digest(data) == digest
    crew.close()


def test_a_part_is_proven_before_it_is_read(node):
    """Its header says what its digest is."""
    memory, crew = SnapshotMemory(node, writer()), CopyThreadPool(1)
    memory.take(1, {"x": torch.arange(5)})
    one = memory.held()[0]
    with opened(one, crew) as part:
        assert part.tensors()["state/x"].tolist() == [0, 1, 2, 3, 4]
        assert part.values()["kept"]["x"].key == "state/x"
    spoil(one.path, 8)
    with pytest.raises(DamagedCheckpointError, match="its data has the digest"), opened(one, crew):
        pass
    memory.close()
    crew.close()
