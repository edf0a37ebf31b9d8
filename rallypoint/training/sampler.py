"""A data order that is a function of (seed, step) and so survives every fault and every change of the world's size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import Sampler

from rallypoint.training.errors import CheckpointError

__all__ = ["MicroBatch", "ResumableSampler"]


class MicroBatch(list[int]):
    """Samples of a share; `last` says whether they are its last."""

    def __init__(self, rows: Sequence[int], *, last: bool) -> None:
        super().__init__(rows)
        self.last = last


class ResumableSampler(Sampler[list[int]]):
    """Cuts every epoch into global batches, and each of them into one share per rank.

    The order of an epoch depends on (`seed`, epoch) alone. Global batch number `step` is therefore the same set of samples
    in every run, whoever was killed and however many ranks share it. The shares of one batch differ in size by one where
    `batch_size` is no multiple of the world's size: multiply a mean loss by `weight`, or scale a summed one by
    `world_size / batch_size`, to get the same mean for every world.

    The last, smaller batch of an epoch is left out (other samples each epoch, when shuffled). With `drop_last=False` every
    sample comes exactly once per epoch: the epoch is cut into batches of at most `batch_size`, which differ in size by one.

    As a part of a `State` it learns its place in each new world. The global batch stays; where fewer ranks share it, and a
    share does not fit in memory, take it in pieces::

        for rows in sampler.micro_batches(state.step, 16):
            with contextlib.nullcontext() if rows.last else model.no_sync():
                (loss(rows) * sampler.weight(state.step, rows)).backward()

    Otherwise use it in one of two ways::

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
        drop_last: leave out what does not fill a whole batch at the end of an epoch.
        rank, world_size: of this process; by default those of the process group, or 0 and 1 without one.

    """

    def __init__(
        self,
        length: int,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        grouped = dist.is_available() and dist.is_initialized()
        self.length, self.batch_size, self.seed, self.shuffle, self.drop_last = length, batch_size, seed, shuffle, drop_last
        self.reshare(
            rank if rank is not None else dist.get_rank() if grouped else 0,
            world_size if world_size is not None else dist.get_world_size() if grouped else 1,
        )
        self.step = 0
        self._order: tuple[int, torch.Tensor] | None = None

    def reshare(self, rank: int, world_size: int) -> None:
        """Take another place in another world, from the next batch on; raises `ValueError` where a batch is too small."""
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: {rank} is not allowed; expected 0 to {world_size - 1}")
        if not world_size <= self.batch_size <= self.length:
            raise ValueError(
                f"batch_size: {self.batch_size} is not allowed; expected {world_size} (world size) to {self.length} (number "
                "of samples)"
            )
        batches = len(self)
        smallest = self.length // batches
        if smallest < world_size:
            raise ValueError(
                f"batch_size: {self.batch_size} is not allowed; the smallest of the {batches} batches would have {smallest} "
                f"samples, but each of the {world_size} ranks needs one"
            )
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        """Return the number of global batches in an epoch."""
        return self.length // self.batch_size if self.drop_last else -(-self.length // self.batch_size)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        return self.step // len(self)

    def global_batch(self, step: int) -> list[int]:
        """Return the samples of global batch `step`, from 0, of all ranks together."""
        epoch, position = divmod(step, len(self))
        samples: list[int] = self._epoch_order(epoch)[self._cut(position) : self._cut(position + 1)].tolist()
        return samples

    def _cut(self, position: int) -> int:
        return position * self.batch_size if self.drop_last else position * self.length // len(self)

    def batch(self, step: int) -> list[int]:
        """Return this rank's share of global batch `step`, from 0."""
        return self.global_batch(step)[self.rank :: self.world_size]

    def micro_batches(self, step: int, size: int) -> Iterator[MicroBatch]:
        """Yield this rank's share of global batch `step` in pieces of at most `size` samples."""
        if size < 1:
            raise ValueError(f"size: {size} is not allowed; expected a whole number of at least 1")
        share = self.batch(step)
        for start in range(0, len(share), size):
            yield MicroBatch(share[start : start + size], last=start + size >= len(share))

    def weight(self, step: int, rows: Sequence[int]) -> float:
        """Return what the mean loss of `rows`, a part of this rank's share of batch `step`, is to be multiplied by.

        Then the sum over the pieces, averaged over the ranks as DDP and FSDP2 do, is the mean of the whole global batch.
        """
        position = step % len(self)
        return len(rows) * self.world_size / (self._cut(position + 1) - self._cut(position))

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
            was = state.get(name, True) if name == "drop_last" else state[name]  # older ones had no choice
            if was != value:
                raise CheckpointError(
                    f"sampler: the checkpoint has {name}={was!r}, but the script has {name}={value!r}; the order of the "
                    "data would change"
                )
        self.seek(state["step"])

    def _identity(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("length", "batch_size", "seed", "shuffle", "drop_last")}

    def _epoch_order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.length)
        if self._order is None or self._order[0] != epoch:
            # Hashed, so that neither seed + epoch nor seed * epoch of another pair gives the same order.
            mixed = hashlib.sha256(f"{self.seed}:{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(mixed[:8], "little") >> 1)
            self._order = (epoch, torch.randperm(self.length, generator=generator))
        return self._order[1]
