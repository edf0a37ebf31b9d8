"""A data order that is a function of (seed, step) and so survives every fault and every change of the world's size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import Sampler

from rallypoint.training.errors import CheckpointError

__all__ = ["ResumableSampler"]


class ResumableSampler(Sampler[list[int]]):
    """Cuts every epoch into global batches, and each of them into one share per rank.

    The order of an epoch depends on (`seed`, epoch) alone. Global batch number `step` is therefore the same set of samples
    in every run, whoever was killed and however many ranks share it. The shares of one batch differ in size by one where
    `batch_size` is no multiple of the world's size: scale a summed loss by `world_size / batch_size` to get the same mean
    for every world. The last, smaller batch of an epoch is left out (other samples each epoch, when shuffled).

    Use it in one of two ways::

        for step in range(start, steps):            # by number: no state to keep but the step
            rows = sampler.batch(step)

        loader = DataLoader(data, batch_sampler=sampler)        # by iteration: the rest of the current epoch
        while sampler.epoch < epochs:
            for rows in loader:
                ...                                             # checkpoint with {"sampler": sampler, ...}

    A loader with worker processes fetches batches ahead of training, so its sampler is ahead too: keep the step, not the
    sampler, in the checkpoint, and call `seek(step)` after loading.

    Args:
        length: number of samples of the data set.
        batch_size: samples per *global* batch, at least the world's size.
        seed: of the order; `shuffle=False` keeps the data set's own.
        rank, world_size: of this process; by default those of the process group, or 0 and 1 without one.

    """

    def __init__(
        self,
        length: int,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        grouped = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if grouped else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if grouped else 1
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank: {self.rank} is not allowed; expected 0 to {self.world_size - 1}")
        if not self.world_size <= batch_size <= length:
            bounds = f"{self.world_size} (the world's size) to {length} (the number of samples)"
            raise ValueError(f"batch_size: {batch_size} is not allowed; expected {bounds}")
        self.length, self.batch_size, self.seed, self.shuffle = length, batch_size, seed, shuffle
        self.step = 0
        self._order: tuple[int, torch.Tensor] | None = None

    def __len__(self) -> int:
        """Return the number of global batches in an epoch."""
        return self.length // self.batch_size

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        return self.step // len(self)

    def global_batch(self, step: int) -> list[int]:
        """Return the samples of global batch `step`, from 0, of all ranks together."""
        epoch, position = divmod(step, len(self))
        start = position * self.batch_size
        samples: list[int] = self._epoch_order(epoch)[start : start + self.batch_size].tolist()
        return samples

    def batch(self, step: int) -> list[int]:
        """Return this rank's share of global batch `step`, from 0."""
        return self.global_batch(step)[self.rank :: self.world_size]

    def seek(self, step: int) -> None:
        """Make global batch `step` the next one that iteration yields."""
        if step < 0:
            raise ValueError(f"step: {step} is not allowed; expected a whole number of at least 0")
        self.step = step

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's share of each batch that is left in the current epoch."""
        epoch = self.epoch
        while self.epoch == epoch:
            self.step += 1
            yield self.batch(self.step - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and everything the order depends on; the same on all ranks."""
        return {"step": self.step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the position; raises `CheckpointError` when the order would not be the one that was interrupted."""
        for name, value in self._identity().items():
            if state[name] != value:
                raise CheckpointError(f"sampler: {name} was {state[name]!r} and is now {value!r}; the data order would change")
        self.seek(state["step"])

    def _identity(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("length", "batch_size", "seed", "shuffle")}

    def _epoch_order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.length)
        if self._order is None or self._order[0] != epoch:
            # Hashed, so that neither seed + epoch nor seed * epoch of another pair gives the same order.
            mixed = hashlib.sha256(f"{self.seed}:{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(mixed[:8], "little") >> 1)
            self._order = (epoch, torch.randperm(self.length, generator=generator))
        return self._order[1]
