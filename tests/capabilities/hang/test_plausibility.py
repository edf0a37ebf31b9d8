"""What the ranks of a world that hangs look like."""

from __future__ import annotations

import pytest

from rallypoint.capabilities.hang.rounds import looks_hung
from rallypoint.wire.hang import RankSeen

REDUCE = ("torch/distributed/distributed_c10d.py:3044 all_reduce", "train.py:61 step")


def rank(state: str = "S", cpu: float = 0.0, frames: tuple[str, ...] = ("train.py:9 step",), number: int = 0) -> RankSeen:
    return RankSeen(local_rank=number, pid=10, state=state, cpu=cpu, frames=frames)


def at(number: int, group: str = "0") -> RankSeen:
    return RankSeen(local_rank=0, pid=10, state="R", cpu=1.0, collective=f"all_reduce #{number} of group {group}, not done")


WAITS, SLEEPS, BUSY = rank(frames=REDUCE), rank(), rank(state="R", cpu=1.0)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param((WAITS, SLEEPS), True, id="one sleeps, the other waits for it"),
        pytest.param((WAITS, BUSY), True, id="one runs in a circle, the other waits for it"),
        pytest.param((WAITS, WAITS), True, id="all wait: two collectives that do not go together"),
        pytest.param((rank("T", cpu=0.9), WAITS), True, id="one is stopped"),
        pytest.param((rank("T", cpu=0.9),), True, id="the only one is stopped"),
        pytest.param((rank("D"), BUSY), True, id="one waits for a disk"),
        pytest.param((BUSY, BUSY), False, id="all are at work on something"),
        pytest.param((BUSY,), False, id="the only one is at work on something"),
        pytest.param((rank(state="R"), rank(state="R")), False, id="none gets the processor"),
        pytest.param((rank("R", 1.0, REDUCE), BUSY), True, id="on a GPU who waits is busy, too"),
        pytest.param((rank("R", 1.0, REDUCE), rank("R", 1.0, REDUCE)), False, id="all are busy in a collective"),
        pytest.param((BUSY, rank("")), False, id="who has ended bears nothing out"),
        pytest.param((WAITS, rank("")), True, id="one has ended, the other waits"),
        pytest.param((at(41), at(40)), True, id="one has not called the collective that the other is in"),
        pytest.param((at(41), at(41)), False, id="all have called the same"),
        pytest.param((at(41), at(40, "1")), False, id="two groups go on by themselves"),
        pytest.param((at(41), BUSY), False, id="one does not tell"),
        pytest.param((), False, id="nobody was found"),
    ],
)
def test_a_world_that_hangs_waits_for_somebody(ranks: tuple[RankSeen, ...], expected: bool) -> None:
    """And one in which everybody computes may only be at work."""
    assert looks_hung(dict(enumerate(ranks))) is expected
