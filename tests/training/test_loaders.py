from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from rallypoint.training import ResumableSampler
from rallypoint.training.lightning import rest_of

ROWS = TensorDataset(torch.arange(20))


def read(loader) -> list[list[int]]:
    return [(batch[0] if isinstance(batch, list) else batch).tolist() for batch in loader]


def shuffled(epoch: int) -> DataLoader:
    sampler: DistributedSampler = DistributedSampler(ROWS, num_replicas=2, rank=1, seed=3)
    sampler.set_epoch(epoch)
    return DataLoader(ROWS, batch_size=2, sampler=sampler)


@pytest.mark.parametrize("done", [0, 1, 4, 5])
def test_the_rest_of_an_epoch_is_what_would_have_come(done):
    """Its order is that of the epoch, whatever the sampler was told before; then come whole epochs. The loader itself stays."""
    loader = shuffled(0)

    rest = rest_of(loader, 2, done)

    assert read(rest) == read(shuffled(2))[done:]
    assert read(rest) == read(shuffled(2))
    assert read(loader) == read(shuffled(2))
    assert len(rest) == len(loader)


def test_what_is_left_out_is_not_read():
    """An epoch of a large data set is broken off near its end."""
    asked: list[int] = []

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            asked.append(index)
            return index

    assert read(rest_of(DataLoader(Rows(), batch_size=4), 0, 3)) == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert asked == list(range(12, 20))


def test_a_stream_is_read_up_to_its_place():
    """Nobody can ask it for the middle."""

    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(8))

    loader = rest_of(DataLoader(Stream(), batch_size=2), 0, 3)

    assert read(loader) == [[6, 7]]
    assert len(read(loader)) == 4
    assert loader.batch_size == 2


def test_a_sampler_of_ours_is_sought():
    """It knows its step, and may be that of a process that lived on."""
    sampler = ResumableSampler(20, batch_size=4, seed=1, rank=0, world_size=2)
    sampler.seek(9)

    rest = rest_of(DataLoader(ROWS, batch_sampler=sampler), 1, 2)

    assert read(rest) == [sampler.batch(step) for step in (7, 8, 9)]


def test_a_loader_that_keeps_its_place_is_left_alone():
    """It is brought there by whoever keeps its state."""

    class Stateful(DataLoader):
        def load_state_dict(self, state) -> None: ...

    loader = Stateful(ROWS, batch_size=4)
    assert rest_of(loader, 0, 3) is loader
