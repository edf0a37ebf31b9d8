"""Parts of a world of one size, read into a world of another: torch.distributed.checkpoint plans, we give it the bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from rallypoint.checkpoint.memory import TensorEntry
from rallypoint.training.snapshots.parts import OpenPart

__all__ = ["PartsReader", "reshard"]

_Place = tuple[OpenPart, TensorEntry]


def reshard(parts: Sequence[OpenPart], targets: dict[str, Any]) -> None:
    """Fill `targets` with what they need of `parts`, whatever ranks wrote those; a collective."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    state_dict_loader.load(targets, storage_reader=PartsReader(parts), planner=planner)


class PartsReader(StorageReader):
    """Gives torch.distributed.checkpoint what lies in parts. Every rank has all that it needs."""

    def __init__(self, parts: Sequence[OpenPart]) -> None:
        self._places: dict[tuple[str, tuple[int, ...]], _Place] = {}
        for part in parts:
            for entry in part.part.tensors:
                # What is not sharded is the same in every part: the first is as good as any.
                self._places.setdefault((entry.key, entry.at), (part, entry))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return which tensors there are, and of which pieces."""
        found: dict[str, TensorStorageMetadata] = {}
        for (key, at), (_, entry) in self._places.items():
            chunk = ChunkStorageMetadata(offsets=torch.Size(at), sizes=torch.Size(entry.shape))
            known = found.get(key)
            if known is None:
                properties = TensorProperties(dtype=getattr(torch, entry.dtype))
                found[key] = TensorStorageMetadata(properties=properties, size=torch.Size(entry.whole), chunks=[chunk])
            else:
                known.chunks.append(chunk)
        return Metadata(state_dict_metadata=dict(found))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Nothing has to be set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy every piece that the plan names."""
        for item in plan.items:
            index: MetadataIndex = item.storage_index
            part, entry = self._places[index.fqn, tuple(index.offset or ())]
            piece = part.tensor(entry)
            for dim, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                piece = piece.narrow(dim, begin, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(piece)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one load to the next."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003  torch asks so
        """Parts have no id."""
        return False
