"""A worker's side of snapshots that are kept on another node, too: what it keeps itself, and when it waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rallypoint.checkpoint.errors import CheckpointError
from rallypoint.checkpoint.memory import everything
from rallypoint.training import Snapshots
from rallypoint.training.snapshots.memory import SnapshotMemory, Writer
from rallypoint.wire import codec, env
from rallypoint.wire.fence import Fence
from rallypoint.wire.replica import SOCKET, Offer, Settled

EVERY = 3


class Agent:
    """Stands for the agent: it hears offers, and answers when it is told to."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()

    def accept(self) -> None:
        self._worker, _ = self._listener.accept()
        self._lines = self._worker.makefile("rb")

    def offered(self) -> int:
        return codec.loads(Offer, self._lines.readline()).step

    def answer(self, step: int, error: str = "") -> None:
        self._worker.sendall(codec.dumps(Settled(step=step, error=error)).encode() + b"\n")

    def hang_up(self) -> None:
        self._lines.close()
        self._worker.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv(env.SNAPSHOT_DIR, str(folder))
    monkeypatch.setenv(env.SNAPSHOT_REPLICA, str(EVERY))
    return folder


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    agent = Agent(folder)
    yield agent
    agent.close()


def steps(folder: Path) -> set[int]:
    return {one.part.step for one in everything(folder)}


def test_the_last_two_that_another_node_may_have_stay_and_so_does_the_newest(tmp_path: Path) -> None:
    """Whatever step the copies of the other ranks are at, it is one of them."""
    writer = Writer(job="", fence=Fence(attempt=1), rank=0, local_rank=0, world_size=1)
    memory = SnapshotMemory(tmp_path, writer, buffers=4, every=EVERY)
    for step in range(1, 12):
        memory.take(step, {"x": torch.full((4,), float(step))})
        memory.wait()
        kept = steps(tmp_path)
        multiples = list(range(EVERY, step + 1, EVERY))[-2:]
        assert {step, *multiples} <= kept, f"after step {step}"
    memory.close()
    with pytest.raises(
        CheckpointError,
        match="buffers: 3 is not allowed; expected at least 4",
    ):
        SnapshotMemory(tmp_path, writer, buffers=3, every=EVERY)


def test_the_next_is_not_taken_before_the_last_is_settled(folder: Path, agent: Agent) -> None:
    """Training goes on meanwhile, up to the step whose snapshot is the next one to be kept elsewhere."""
    snapshots = Snapshots({"x": torch.zeros(4)})
    for step in range(1, EVERY + 1):
        snapshots.save(step)
    agent.accept()
    assert agent.offered() == EVERY
    for step in range(EVERY + 1, 2 * EVERY):
        snapshots.save(step)

    taken = threading.Event()

    def take() -> None:
        snapshots.save(2 * EVERY)
        taken.set()

    taking = threading.Thread(target=take)
    taking.start()
    snapshots._memory.wait()
    assert not taken.is_set()
    assert 2 * EVERY not in steps(folder)
    agent.answer(EVERY, "nobody has room")
    taking.join()
    assert agent.offered() == 2 * EVERY
    agent.answer(2 * EVERY)
    snapshots.close()
    agent.hang_up()


def test_without_its_agent_training_goes_on(folder: Path, agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and nothing is offered any more."""
    snapshots = Snapshots({"x": torch.zeros(4)})
    for step in range(1, EVERY + 1):
        snapshots.save(step)
    agent.accept()
    assert agent.offered() == EVERY
    agent.hang_up()
    for step in range(EVERY + 1, 3 * EVERY + 1):
        assert snapshots.save(step)
    snapshots.close()

    assert caplog.text.count("no longer copied to another node") == 1
    assert 3 * EVERY in steps(folder)
