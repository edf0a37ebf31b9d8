"""Which commit a new world goes on from, and how a commit is taken, kept, found again and given back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but torch lists it by dir()

from rallypoint.training.commits import Commits
from rallypoint.training.healing import ROUND, Agreement, choose, heal


def held(*ranks: tuple[int, ...]) -> list[frozenset[int]]:
    return [frozenset(numbers) for numbers in ranks]


@pytest.mark.parametrize(
    ("ranks", "agreed"),
    [
        pytest.param(held((), ()), None, id="nobody has anything"),
        pytest.param(held((4, 5), (4, 5)), Agreement(number=5, source=0, needy=()), id="all have the last"),
        pytest.param(held((5, 6), (4, 5)), Agreement(number=5, source=0, needy=()), id="one is a step ahead: it goes back"),
        pytest.param(held((), (4, 5)), Agreement(number=5, source=1, needy=(0,)), id="rank 0 is new: rank 1 sends"),
        pytest.param(held((5, 6), (), (6, 7)), Agreement(number=6, source=0, needy=(1,)), id="the lowest that has it sends"),
        pytest.param(held((0,), ()), Agreement(number=0, source=0, needy=(1,)), id="the state at the start is one, too"),
        pytest.param(held((8, 9), (2, 3)), Agreement(number=3, source=1, needy=(0,)), id="nothing in common"),
        pytest.param(
            held((17, 18), (ROUND + 1, ROUND + 2)),
            Agreement(number=ROUND + 2, source=1, needy=(0,)),
            id="one was away for a round: what its dead worker left is old",
        ),
        pytest.param(
            held((ROUND + 40,), (2 * ROUND,), (2 * ROUND, 2 * ROUND + 1)),
            Agreement(number=2 * ROUND, source=1, needy=(0,)),
            id="however high its count",
        ),
    ],
)
def test_a_world_goes_on_from_the_last_commit_that_all_can_have(ranks: list[frozenset[int]], agreed: Agreement | None) -> None:
    """Who has it sends it to those who have none."""
    assert choose(ranks) == agreed


@given(st.lists(st.frozensets(st.integers(0, 5), max_size=2), min_size=1, max_size=6))
def test_every_rank_has_the_agreed_commit_or_is_sent_it(ranks: list[frozenset[int]]) -> None:
    """Whoever sends has it, whoever needs it has it not, and nobody else is forgotten."""
    agreed = choose(ranks)
    if agreed is None:
        assert not any(ranks)
        return
    assert agreed.number in ranks[agreed.source]
    assert set(agreed.needy) == {rank for rank, numbers in enumerate(ranks) if agreed.number not in numbers}
    assert all(agreed.number in numbers for numbers in ranks[agreed.source : agreed.source + 1])


def parts() -> dict[str, object]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1), "step": 0, "name": "a"}


def train(state: dict[str, object], steps: int) -> list[float]:
    model, optimizer = state["model"], state["optimizer"]
    assert isinstance(model, nn.Module)
    assert isinstance(optimizer, torch.optim.Optimizer)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4)).square().mean() * random.uniform(0.5, 1.5)
        loss.backward()
        optimizer.step()
        state["step"] = int(str(state["step"])) + 1
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("shared", [True, False], ids=["in shared memory", "in the process"])
def test_what_is_restored_goes_on_bit_by_bit(tmp_path: Path, shared: bool) -> None:
    """Weights, buffers, optimizer, counters and random states; in the same process, and in one that is new."""
    torch.manual_seed(0)
    state = parts()
    commits = Commits(tmp_path if shared else None, "0", attempt=1)
    commits.take(state, 0, rank=0, world_size=1)
    train(state, 3)
    commits.take(state, 1, rank=0, world_size=1)
    told = train(state, 4)
    commits.restore(1, state, rank=0)
    assert (state["step"], train(state, 4)) == (3, told)

    if shared:
        fresh, successor = parts(), Commits(tmp_path, "0", attempt=1)
        assert [h.number for h in successor.held()] == [1, 0]
        successor.restore(1, fresh, rank=0)
        assert (fresh["step"], train(fresh, 4)) == (3, told)
        assert Commits(tmp_path, "0", attempt=2).held() == ()


def test_only_the_last_three_are_kept_and_what_is_torn_is_none(tmp_path: Path) -> None:
    """A writer that died in the middle leaves the other two: whatever step the others are at, one of theirs is among them."""
    state = parts()
    commits = Commits(tmp_path, "0", attempt=1)
    for number in range(4):
        commits.take(state, number, rank=0, world_size=1)
    assert [h.number for h in commits.held()] == [3, 2, 1]
    commits.receive(10, 10, spare=3)  # as far as a killed writer comes
    assert [h.number for h in Commits(tmp_path, "0", attempt=1).held()] == [3, 2]
    commits.forget_above(1)
    assert commits.held() == ()
    with pytest.raises(LookupError, match="commit 3"):
        commits.restore(3, state, rank=0)


def test_another_ranks_commit_is_taken_up_without_its_random_states(tmp_path: Path) -> None:
    """What the ranks must have in common is sent; what they draw is their own."""
    source, target = Commits(None, "0", attempt=1), Commits(tmp_path, "1", attempt=1)
    state, other = parts(), parts()
    train(state, 2)
    source.take(state, 7, rank=0, world_size=2)
    data, text = source.flat(7)
    into, into_text = target.receive(len(data), len(text), spare=-1)
    into.copy_(data)
    into_text.copy_(text)
    target.received(into_text, 7, 0, 2)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    target.restore(7, other, rank=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert other["step"] == 2
    model, copied = state["model"], other["model"]
    assert isinstance(model, nn.Module)
    assert isinstance(copied, nn.Module)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), copied.state_dict().values(), strict=True))


def test_where_there_is_no_room_a_commit_stays_in_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that cannot be replaced without a step lost is better than one that cannot train."""
    (tmp_path / "file").write_text("")
    state = parts()
    train(state, 2)
    commits = Commits(tmp_path / "file", "0", attempt=1)
    for number in range(3):
        commits.take(state, number, rank=0, world_size=1)
    assert [h.number for h in commits.held()] == [2, 1, 0]
    assert "if the worker dies, its commits are lost" in caplog.text
    told = train(state, 2)
    commits.restore(2, state, rank=0)
    assert train(state, 2) == told


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process by itself."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("loaded", "healed", "step"),
    [
        pytest.param(None, 2 * ROUND, 3, id="nothing was loaded"),
        pytest.param(2, 2 * ROUND, 3, id="an older checkpoint was"),
        pytest.param(3, 2 * ROUND, 3, id="one of the same step was"),
        pytest.param(5, None, 5, id="a newer one was: the commit is of a world that is long over"),
    ],
)
def test_nobody_goes_back_behind_what_was_loaded(loaded: int | None, healed: int | None, step: int) -> None:
    """A commit that a node still has from before others trained on without it is older than their checkpoint."""
    commits, state = Commits(None, "0", attempt=1), parts()
    train(state, 3)
    commits.take(state, ROUND + 17, rank=0, world_size=1)
    state["step"] = 5

    cpu, store = torch.device("cpu"), HashStore()
    assert heal(commits, state, sharded=False, device=cpu, round_=2, store=store, loaded=loaded) == healed

    assert state["step"] == step
    assert [found.number for found in commits.held()] == [ROUND + 17 if healed is None else healed]
