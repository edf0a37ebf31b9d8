"""NCCL groups that are replaced while the process lives on, against a stand-in for torch's own class that is as strict."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but torch lists it by dir()

from rallypoint.training.reconfigurable import abort, make
from rallypoint.training.session import Session, WorldLeft
from rallypoint.wire import line as wire

LIMIT = timedelta(minutes=3)


class FakeNccl:
    """`ProcessGroupNCCL`: reads its variable when it is made, and knows these options alone."""

    class Options:
        __slots__ = ("_timeout", "global_ranks_in_group", "group_name")

    def __init__(self, store: object, rank: int, size: int, options: Options) -> None:
        self.place, self.options = (rank, size), options
        # torch reads the current name first; without either of them it ends the process on an error (3).
        found = (os.environ.get(name) for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"))
        self.handling = next(filter(None, found), "3")


@pytest.mark.parametrize("before", [None, "1", "3"])
def test_torch_does_not_end_a_process_that_lives_on(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    """The agent handles the loss of a peer; groups that the script makes by itself have what the user asked for."""
    monkeypatch.delenv("NCCL_ASYNC_ERROR_HANDLING", raising=False)
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    if before is not None:
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", before)
    outside = dict(os.environ)

    made = make(HashStore(), 1, 3, LIMIT, name="0", torch_side=SimpleNamespace(ProcessGroupNCCL=FakeNccl))

    assert made.handling == "0"
    assert dict(os.environ) == outside
    assert (made.place, made.options._timeout) == ((1, 3), LIMIT)
    assert (made.options.group_name, made.options.global_ranks_in_group) == ("0", [0, 1, 2])


class Backend:
    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


def test_only_nccl_is_aborted() -> None:
    """Some versions of torch raise for a backend that cannot be aborted, and may come to it before NCCL's."""
    mine = Backend()

    class Group:
        _device_types = (torch.device("cpu"), torch.device("cuda"))

        def _get_backend(self, device: torch.device) -> Backend:
            assert device == torch.device("cuda"), "Backend gloo does not support abort"
            return mine

    abort(Group())

    assert mine.aborted == 1


class Taken(list[int]):
    def take(self, parts: object, number: int, *place: int, lazy: bool) -> None:
        self.append(number)


@pytest.mark.parametrize(("backend", "kept"), [("nccl", 0), ("cpu:gloo,cuda:nccl", 0), ("gloo", 1)])
def test_what_an_aborted_collective_gave_is_not_committed(monkeypatch: pytest.MonkeyPatch, backend: str, kept: int) -> None:
    """An aborted NCCL collective ends without an error, so the step seems whole; gloo's raises, and the script is not here."""
    monkeypatch.setenv("RALLYPOINT_ROUND", "2")
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    taken, rounds = Taken(), SimpleNamespace(backend=backend, free=lambda: None, stuck=False)
    state: Any = SimpleNamespace(parts={}, lazy=False)
    session = Session(state, SimpleNamespace(say=lambda _: None), rounds, taken)  # type: ignore[arg-type]
    session.commit()
    session._ear.leave(wire.Leave(round=2, reason="rank 1 was lost"))

    if kept:
        session.commit()
    else:
        with pytest.raises(WorldLeft, match="rank 1 was lost"):
            session.commit()

    assert len(taken) == 1 + kept
