"""One part, read and proven: the digest of everything in it is computed before anything of it is believed."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rallypoint.checkpoint.errors import DamagedCheckpointError
from rallypoint.checkpoint.memory import Held, Part, TensorEntry, pinned
from rallypoint.training.snapshots.copy_threads import CopyThreadPool

__all__ = ["OpenPart", "opened", "proven"]


@dataclass(frozen=True)
class OpenPart:
    """A proven part; its tensors are views of `data`, to be copied while it is open."""

    part: Part
    data: torch.Tensor

    def tensor(self, entry: TensorEntry) -> torch.Tensor:
        """Return one of its tensors."""
        piece = self.data[entry.offset : entry.offset + entry.size]
        return piece.view(getattr(torch, entry.dtype)).view(entry.shape)

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Return all of them by key."""
        return {entry.key: self.tensor(entry) for entry in self.part.tensors}

    def values(self) -> dict[str, Any]:
        """Return all that is not a tensor: `kept` by entry of the state, and `random`. Unpickles."""
        at, size = self.part.values_at, self.part.values_size
        content: dict[str, Any] = pickle.loads(ctypes.string_at(self.data.data_ptr() + at, size))  # noqa: S301  its digest is right
        return content


@contextlib.contextmanager
def opened(one: Held, crew: CopyThreadPool) -> Iterator[OpenPart]:
    """Yield a part that nobody overwrites while the block lasts.

    Raises:
        DamagedCheckpointError: when it was overwritten before, is torn, or does not have the digest of its header.

    """
    with pinned(one) as fd:
        # Private and writable: torch has no tensors that cannot be written, and nobody writes into this one.
        mapped = mmap.mmap(fd, one.part.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        data = torch.frombuffer(mapped, dtype=torch.uint8)
        yield proven(one.part, data, crew, str(one.path))


def proven(part: Part, data: torch.Tensor, crew: CopyThreadPool, where: str) -> OpenPart:
    """Return `data` as the part that it is; raises `DamagedCheckpointError` when its digest is another one."""
    found = crew.digest(data)
    if found != part.digest:
        raise DamagedCheckpointError(
            f"a snapshot is damaged ({where}): its data has the digest {found}; expected {part.digest}"
        )
    return OpenPart(part, data)
