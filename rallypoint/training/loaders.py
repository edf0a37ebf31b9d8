"""The rest of an epoch of any data loader: what was read before a fault is left out, without being read where that can be."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

__all__ = ["rest_of"]


def rest_of(loader: Any, epoch: int, batches: int) -> Any:
    """Return a loader that is the same but for its first iteration, which leaves out so many batches."""
    if hasattr(loader, "load_state_dict"):
        return loader  # it has told its own place, and is brought there by Lightning
    sampler: Any = getattr(loader, "batch_sampler", None)
    seek = getattr(sampler, "seek", None)
    if seek is not None:
        seek(epoch * len(sampler) + batches)
        return loader
    # Workers of a loader ask for samples before Lightning tells the sampler its epoch.
    for told in (getattr(loader, "sampler", None), getattr(sampler, "sampler", None), sampler):
        set_epoch = getattr(told, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    if isinstance(loader, DataLoader) and sampler is not None and not isinstance(loader.dataset, IterableDataset):
        shortened = copy.copy(loader)
        vars(shortened)["batch_sampler"] = _Rest(sampler, batches)  # torch lets nobody set it
        return shortened
    return _Rest(loader, batches)


class _Rest:
    """An iterable whose first iteration begins after `left_out` items; in all else it is what it stands for."""

    def __init__(self, whole: Iterable[Any], left_out: int) -> None:
        self._whole, self._left_out = whole, left_out

    def __iter__(self) -> Iterator[Any]:
        left_out, self._left_out = self._left_out, 0
        items = iter(self._whole)
        for _ in range(left_out):
            next(items, None)
        yield from items

    def __len__(self) -> int:
        return len(self._whole)  # type: ignore[arg-type]  # where that has no length, nor has this

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)
