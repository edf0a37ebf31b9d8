"""Threads that copy and digest tensors beside the training thread. Long calls release the interpreter lock."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import torch

from rallypoint.training.snapshots.device_copies import DeviceCopies, Marks
from rallypoint.training.snapshots.digest import ROW, digest_of, row_sums
from rallypoint.training.snapshots.linux import move

__all__ = ["CopyThreadPool", "Piece", "copy_thread_count"]

#: Bytes of a piece of work: large enough to cost nothing by itself, small enough to be shared out evenly.
_PIECE = 8 << 20

#: Below so many bytes handing work to others takes longer than to do it.
_ALONE = 4 << 20

#: More threads than this find no more memory bandwidth (15 GB/s with two and with four, where one has 12).
_MOST = 4


@dataclass(frozen=True)
class Piece:
    """Copy `size` bytes of `source` to `offset` in a buffer. Where `address` is not 0, `source` lies there in one piece."""

    offset: int
    size: int
    address: int
    source: torch.Tensor


def copy_thread_count(local_world_size: int) -> int:
    """Return how many threads a worker may use: its share of the cores that this process may run on."""
    return max(1, min(_MOST, len(os.sched_getaffinity(0)) // max(1, local_world_size)))


class CopyThreadPool:
    """A few threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="rallypoint-copy")
        self._devices = DeviceCopies()

    def mark(self, pieces: Sequence[Piece]) -> Marks:
        """Return how far the calling thread's streams have come on the devices of `pieces`, for a `copy` in another thread."""
        return self._devices.mark(piece.source for piece in pieces)

    def copy(self, pieces: Sequence[Piece], into: torch.Tensor, marks: Marks | None = None) -> None:
        """Copy all pieces into the buffer `into`; returns when all are there.

        What is on a device is copied as it was at its mark, or without one behind what the calling thread has computed there.
        """
        base = into.data_ptr()
        raw = [piece for piece in pieces if piece.address]
        shaped = [piece for piece in pieces if not piece.address]
        for piece in shaped:
            if not piece.source.is_cuda:
                _copy_shaped(piece, into)
        moves = [cut for piece in raw for cut in _cut(base + piece.offset, piece.address, piece.size)]
        self._share(_move_all, moves, sum(piece.size for piece in raw))
        on_devices = [(piece.source.device, partial(_copy_shaped, piece, into)) for piece in shaped if piece.source.is_cuda]
        self._devices.run(on_devices, marks or {})

    def digest(self, data: torch.Tensor) -> str:
        """Return the digest of `data`, bytes of a whole number of rows."""
        cuts = [data[begin : begin + _PIECE] for begin in range(0, data.numel(), _PIECE)]
        sums = torch.empty(data.numel() // ROW, dtype=torch.int64)
        rows = _PIECE // ROW
        work = [(cut, sums[n * rows : n * rows + cut.numel() // ROW]) for n, cut in enumerate(cuts)]
        self._share(_sum_all, work, data.numel())
        return digest_of(sums)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True)

    def _share(self, do: object, work: Sequence[object], size: int) -> None:
        if self.size == 1 or size < _ALONE or len(work) == 1:
            do(work)  # type: ignore[operator]
            return
        futures: list[Future[None]] = [self._threads.submit(do, work[n :: self.size]) for n in range(self.size)]  # type: ignore[arg-type]
        wait(futures)
        for future in futures:
            future.result()


def _cut(to: int, of: int, size: int) -> Iterable[tuple[int, int, int]]:
    return [(to + done, of + done, min(_PIECE, size - done)) for done in range(0, size, _PIECE)]


def _move_all(moves: Sequence[tuple[int, int, int]]) -> None:
    for to, of, size in moves:
        move(to, of, size)


def _sum_all(work: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for data, sums in work:
        sums.copy_(row_sums(data))


def _copy_shaped(piece: Piece, into: torch.Tensor) -> None:
    """Copy what is strided, or on a device, element by element."""
    source = piece.source
    target = into[piece.offset : piece.offset + piece.size].view(source.dtype).view(source.shape)
    target.copy_(source, non_blocking=source.is_cuda)
