from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from rallypoint.training import CheckpointError, ResumableSampler


class Numbers(Dataset[int]):
    """Sample number n is n."""

    def __getitem__(self, index):
        return index


def sampler(rank=0, world_size=1, **changes):
    return ResumableSampler(**{"length": 50, "batch_size": 8, "seed": 3, "rank": rank, "world_size": world_size, **changes})


@given(world_size=st.integers(1, 8), step=st.integers(0, 40), seed=st.integers(0, 9))
def test_the_shares_of_a_batch_are_the_batch(world_size, step, seed):
    """Whatever the world's size, all ranks together see the same global batch, no sample twice, shares differing by one."""
    whole = sampler(seed=seed).batch(step)
    shares = [sampler(rank, world_size, seed=seed).batch(step) for rank in range(world_size)]

    assert sorted(chain(*shares)) == sorted(whole)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(epoch=st.integers(0, 5))
def test_an_epoch_shows_no_sample_twice(epoch):
    """The batches of one epoch are disjoint."""
    one = sampler()
    seen = list(chain(*(one.global_batch(epoch * len(one) + number) for number in range(len(one)))))

    assert len(seen) == len(set(seen)) == 48


def test_every_epoch_and_seed_has_its_own_order():
    """Orders differ between epochs and seeds, and are the same when asked again."""
    one = sampler()

    assert one.global_batch(0) != one.global_batch(len(one))
    assert one.global_batch(0) != sampler(seed=4).global_batch(0)
    assert one.global_batch(0) == sampler().global_batch(0)


def test_without_shuffling_the_order_is_the_data_sets():
    """`shuffle=False` yields the samples in order, each epoch anew."""
    one = sampler(shuffle=False)

    assert one.batch(1) == one.batch(1 + len(one)) == list(range(8, 16))


@pytest.mark.parametrize("fault", [pytest.param(4, id="within an epoch"), pytest.param(6, id="at its end"), 0, 9])
@pytest.mark.parametrize("world_size", [pytest.param(2, id="same world"), pytest.param(4, id="larger world")])
def test_what_is_left_after_a_fault_is_what_would_have_come(fault, world_size):
    """After a resume, also in another world, the remaining global batches are those of the undisturbed run."""
    steps = 15
    undisturbed = [set(sampler().batch(step)) for step in range(steps)]
    saved = consume(sampler(0, 2), fault)[1].state_dict()

    rest = []
    for rank in range(world_size):
        resumed = sampler(rank, world_size)
        resumed.load_state_dict(saved)
        rest.append(consume(resumed, steps - fault)[0])

    assert [set().union(*batch) for batch in zip(*rest, strict=True)] == undisturbed[fault:]


def consume(one, count):
    """Take `count` batches, over as many epochs as that needs."""
    batches: list[list[int]] = []
    while len(batches) < count:
        for batch in one:
            batches.append(batch)
            if len(batches) == count:
                break
    return batches, one


def test_a_loader_iterates_what_is_left_of_the_epoch():
    """As a batch sampler of a DataLoader it yields the rest of the current epoch, then the next one."""
    one = sampler()
    one.seek(4)
    loader = DataLoader(Numbers(), batch_sampler=one)

    assert [batch.tolist() for batch in loader] == [sampler().batch(4), sampler().batch(5)]
    assert (one.epoch, len(list(loader))) == (1, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"batch_size": 51},
            "batch_size: 51 is not allowed; expected 1 .* to 50",
            id="batch beyond the data",
        ),
        pytest.param({"batch_size": 2, "world_size": 3}, r"expected 3 \(world size\)", id="a rank without samples"),
        pytest.param(
            {"rank": 1},
            "rank: 1 is not allowed; expected 0 to 0",
            id="rank beyond the world",
        ),
    ],
)
def test_wrong_values_are_refused(changes, message):
    """An error names the value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        sampler(**changes)


def test_another_order_is_refused_at_loading():
    """A sampler whose order would differ from the interrupted one does not take up its position."""
    with pytest.raises(CheckpointError, match="the checkpoint has batch_size=8, but the script has batch_size=4"):
        sampler(batch_size=4).load_state_dict(sampler().state_dict())
    with pytest.raises(ValueError, match="step: -1"):
        sampler().seek(-1)


@given(
    length=st.integers(9, 200),
    batch_size=st.integers(4, 40),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=60),
    shuffle=st.booleans(),
)
def test_each_sample_comes_exactly_once_per_epoch_whatever_the_world_is(length, batch_size, sizes, shuffle):
    """The world changes its size at each step of the list; the epoch is the same set of samples, none twice, none missing."""
    batch_size = min(batch_size, length)
    try:
        ranks = [sampler(length=length, batch_size=batch_size, drop_last=False, shuffle=shuffle) for _ in range(4)]
        ranks[0].reshare(0, 4)
    except ValueError:
        assert length // -(-length // batch_size) < 4
        return
    seen = []
    for step in range(len(ranks[0])):
        size = sizes[step % len(sizes)]
        for rank in range(size):
            ranks[rank].reshare(rank, size)
            seen += ranks[rank].batch(step)
    assert sorted(seen) == list(range(length))


@given(world_size=st.integers(1, 5), pieces=st.integers(1, 9), step=st.integers(0, 12), drop_last=st.booleans())
def test_weighted_micro_batches_give_the_mean_of_the_global_batch(world_size, pieces, step, drop_last):
    """Whoever shares it, and in however many pieces: summed over the pieces and averaged over the ranks."""
    ranks = [sampler(rank, world_size, length=53, drop_last=drop_last) for rank in range(world_size)]
    whole = ranks[0].global_batch(step)
    sums = []
    for one in ranks:
        parts = list(one.micro_batches(step, pieces))
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
        assert list(chain(*parts)) == one.batch(step)
        sums.append(sum(one.weight(step, rows) * sum(rows) / len(rows) for rows in parts))
    assert sum(sums) / world_size == pytest.approx(sum(whole) / len(whole))


def test_a_world_that_is_too_large_for_the_batch_is_refused():
    """By name; the sampler keeps its place."""
    one = sampler(1, 2, batch_size=4)
    with pytest.raises(ValueError, match="batch_size: 4"):
        one.reshare(0, 5)
    with pytest.raises(ValueError, match="rank: 3"):
        one.reshare(3, 3)
    with pytest.raises(
        ValueError, match="the smallest of the 3 batches would have 3 samples, but each of the 4 ranks needs one"
    ):
        sampler(0, 4, length=9, batch_size=4, drop_last=False)
    assert (one.rank, one.world_size) == (1, 2)


def test_a_state_from_before_there_was_a_choice_is_taken_up():
    """It left the last batch out."""
    state = sampler().state_dict()
    del state["drop_last"]
    one = sampler()
    one.load_state_dict({**state, "step": 4})
    assert one.step == 4
    with pytest.raises(CheckpointError, match="the checkpoint has drop_last=True, but the script has drop_last=False"):
        sampler(drop_last=False).load_state_dict(state)
