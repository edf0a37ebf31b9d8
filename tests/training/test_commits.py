"""Commits of a state that is large enough to be copied while the next step runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from rallypoint.training.commits import Commits
from rallypoint.training.snapshots.copy_threads import CopyThreadPool
from rallypoint.training.state import State

WIDE = 1100  # 4.8 MB of weights: more than what is copied at once


def wide() -> dict[str, object]:
    torch.manual_seed(0)
    model = nn.Linear(WIDE, WIDE)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "step": 0}


def backward(state: dict[str, object]) -> None:
    model = state["model"]
    assert isinstance(model, nn.Module)
    model.zero_grad()
    model(torch.ones(1, WIDE)).square().mean().backward()


def weights(state: Mapping[str, object]) -> torch.Tensor:
    model = state["model"]
    assert isinstance(model, nn.Linear)
    return model.weight.detach().clone()


class Held(CopyThreadPool):
    """Threads that do not copy what may be copied later before they are let."""

    def __init__(self) -> None:
        super().__init__(1)
        self.let, self.later, self.began = threading.Event(), threading.Event(), threading.Event()

    def copy(self, pieces, into, marks=None) -> None:
        if pieces and threading.current_thread() is not threading.main_thread():
            self.later.set()
            self.let.wait()
        super().copy(pieces, into, marks)


@pytest.fixture
def crew() -> Held:
    return Held()


@pytest.fixture
def commits(tmp_path: Path, crew: Held) -> Commits:
    commits = Commits(tmp_path, "0", attempt=1)
    commits._crew.close()
    commits._crew = crew
    return commits


def test_a_commit_under_way_is_what_was_committed_and_never_the_last_one(tmp_path: Path, commits: Commits, crew: Held) -> None:
    """The optimizer's step waits for it; whoever looks from outside finds the one before, whole."""
    state = wide()
    commits.take(state, 0, rank=0, world_size=1, lazy=False)
    commits.take(state, 1, rank=0, world_size=1)
    told = weights(state)
    assert [h.number for h in Commits(tmp_path, "0", attempt=1).held()] == [0]

    backward(state)
    optimizer = state["optimizer"]
    assert isinstance(optimizer, torch.optim.Optimizer)
    stepping = threading.Thread(target=optimizer.step)
    stepping.start()
    crew.later.wait()
    assert torch.equal(weights(state), told)
    crew.let.set()
    stepping.join()
    assert not torch.equal(weights(state), told)

    commits.settle()
    fresh = wide()
    successor = Commits(tmp_path, "0", attempt=1)
    assert [h.number for h in successor.held()] == [1, 0]
    successor.restore(1, fresh, rank=0)
    assert torch.equal(weights(fresh), told)
    commits.close()


def test_a_weight_that_changed_meanwhile_drops_the_commit(
    commits: Commits, crew: Held, caplog: pytest.LogCaptureFixture
) -> None:
    """Torn is never kept; from then on all is copied before `take` returns."""
    state = wide()
    model = state["model"]
    assert isinstance(model, nn.Linear)
    commits.take(state, 0, rank=0, world_size=1, lazy=False)
    commits.take(state, 1, rank=0, world_size=1)
    with torch.no_grad():
        model.weight.clamp_(-0.001, 0.001)
    crew.let.set()

    assert [h.number for h in commits.held()] == [0]
    assert "dropped commit 1, because the script changed a weight" in caplog.text
    crew.let.clear()
    commits.take(state, 2, rank=0, world_size=1)
    assert [h.number for h in commits.held()] == [2, 0]
    commits.close()


def test_a_script_may_ask_that_all_is_copied_before_a_commit_returns(tmp_path: Path, commits: Commits) -> None:
    """It changes weights between a commit and the next step in a way that torch does not count; the commit is whole."""
    state = State(**wide())
    state.copy_at_once()
    told = weights(state.parts)
    commits.take(state.parts, 0, rank=0, world_size=1, lazy=state.lazy)
    state.model.weight.data.zero_()

    fresh = wide()
    Commits(tmp_path, "0", attempt=1).restore(0, fresh, rank=0)
    assert torch.equal(weights(fresh), told)
    commits.close()


def test_prepared_memory_keeps_what_it_holds(tmp_path: Path) -> None:
    """It is there before the first commit that needs it, and a predecessor's commit in it stays."""
    state = wide()
    first = Commits(tmp_path, "0", attempt=1)
    first.take(state, 5, rank=0, world_size=1)
    first.close()
    told = weights(state)

    second = Commits(tmp_path, "0", attempt=1)
    second.prepare({**state, "more": torch.zeros(1 << 20)})
    second.settle()
    sizes = {path.stat().st_size for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 3
    assert min(sizes) > 4 * WIDE * WIDE + (4 << 20)
    fresh = wide()
    second.restore(5, fresh, rank=0)
    assert torch.equal(weights(fresh), told)
    second.close()


def test_an_optimizer_that_passes_steps_on_is_copied_at_once(tmp_path: Path) -> None:
    """It was never set up as an optimizer and has no hooks: nobody could make it wait."""

    class Passing(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

        @property
        def param_groups(self):  # type: ignore[override]
            return self.inner.param_groups

        def state_dict(self):
            return self.inner.state_dict()

    state = wide()
    inner = state["optimizer"]
    assert isinstance(inner, torch.optim.Optimizer)
    state["optimizer"] = Passing(inner)
    commits = Commits(tmp_path, "0", attempt=1)
    commits.take(state, 1, rank=0, world_size=1)
    assert [h.number for h in Commits(tmp_path, "0", attempt=1).held()] == [1]
    commits.close()
