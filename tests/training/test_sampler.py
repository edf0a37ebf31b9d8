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
        pytest.param({"batch_size": 51}, "batch_size: 51 is not allowed; expected 1 .* to 50", id="batch beyond the data"),
        pytest.param({"batch_size": 2, "world_size": 3}, "expected 3 .the world's size.", id="a rank without samples"),
        pytest.param({"rank": 1}, "rank: 1 is not allowed; expected 0 to 0", id="rank beyond the world"),
    ],
)
def test_wrong_values_are_refused(changes, message):
    """An error names the value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        sampler(**changes)


def test_another_order_is_refused_at_loading():
    """A sampler whose order would differ from the interrupted one does not take up its position."""
    with pytest.raises(CheckpointError, match="batch_size was 8 and is now 4"):
        sampler(batch_size=4).load_state_dict(sampler().state_dict())
    with pytest.raises(ValueError, match="step: -1"):
        sampler().seek(-1)
