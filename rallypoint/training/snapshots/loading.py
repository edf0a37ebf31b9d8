"""The way back: the newest snapshot that the ranks of a world have between them, proven before anything changes."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
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
from torch.distributed.tensor import DTensor
from torch.futures import Future

from rallypoint.checkpoint.errors import CheckpointError, DamagedCheckpointError
from rallypoint.checkpoint.manifest import Checkpoint, Manifest
from rallypoint.checkpoint.memory import Held, TensorEntry, area_of, everything
from rallypoint.checkpoint.persist import part_files
from rallypoint.checkpoint.store import Store
from rallypoint.training import values
from rallypoint.training.randomness import restore_random_state
from rallypoint.training.signed import place
from rallypoint.training.snapshots.capture import random_key, state_key
from rallypoint.training.snapshots.choosing import Age, choose, seen_of
from rallypoint.training.snapshots.copy_threads import CopyThreadPool
from rallypoint.training.snapshots.exchange import gather, node_name, send_missing, send_own, send_whole
from rallypoint.training.snapshots.parts import OpenPart, opened

__all__ = ["PartsReader", "fill", "load_from_memory", "load_from_store", "reshard"]

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


_log = logging.getLogger(__name__)

_State = MutableMapping[str, Any]
_Refused = set[tuple[Path, bytes]]


def load_from_memory(
    folder: Path, state: _State, crew: CopyThreadPool, *, wanted: Callable[[Age], bool] = lambda _: True
) -> Age | None:
    """Take up the newest snapshot in memory that is `wanted`, and return its age; None where there is none. A collective.

    A damaged one is logged and passed over for another copy, and where there is none for the one before.
    """
    refused: _Refused = set()
    while True:
        mine = [one for one in everything(folder) if (one.path, one.text) not in refused and wanted(one.part.age)]
        node = node_name(folder)
        age = choose(gather([seen_of(one.part, node) for one in mine]))
        if age is None:
            return None
        held = _own_first([one for one in mine if one.part.age == age])
        with contextlib.ExitStack() as stack:
            if _Load(folder, held, crew, stack, refused).into(state):
                return age


def load_from_store(store: Store, checkpoint: Checkpoint, manifest: Manifest, state: _State, crew: CopyThreadPool) -> None:
    """Take up a persisted snapshot; a collective. Of a whole one, rank 0 reads and gives it to the others.

    Raises:
        DamagedCheckpointError: on every rank, when a part of it is not what its header says.

    """
    rank, world_size = place()
    headers = sorted(name for name in manifest.files if name.endswith(".json"))
    ranks = [int(name.removeprefix("rank-").removesuffix(".json")) for name in headers]
    if len(ranks) == 1:
        mine = ranks if rank == 0 else []
    else:
        mine = [rank] if manifest.world_size == world_size and not _resharded(state) else ranks
    files = [file for number in mine for file in part_files(number)]
    with store.fetched(checkpoint, files) as folder, _as_memory(folder, mine) as memory:
        if load_from_memory(memory, state, crew) is None:
            raise DamagedCheckpointError(f"{checkpoint.path}: the checkpoint is damaged")


def _resharded(state: _State) -> bool:
    # One mesh of all ranks is cut alike in every world of one size; of several, nobody knows.
    meshes = {tuple(t.device_mesh.shape) for t in _present(state).values() if isinstance(t, DTensor)}
    return len(meshes) > 1


@contextlib.contextmanager
def _as_memory(folder: Path, ranks: Sequence[int]) -> Iterator[Path]:
    """Let persisted parts look as they did in memory."""
    with tempfile.TemporaryDirectory(prefix="rallypoint-parts-") as temporary:
        for number in ranks:
            area = area_of(Path(temporary), number)
            area.mkdir()
            data, header = part_files(number)
            (area / "0.bin").symlink_to(folder / data)
            (area / "0.json").symlink_to(folder / header)
        yield Path(temporary)


def fill(parts: Sequence[OpenPart], state: _State) -> None:
    """Put what `parts` hold into `state`, by resharding where the shapes differ; a collective. The first part is our own."""
    first = parts[0]
    content = first.values()
    kept = content["kept"]
    for name in state:
        if name not in kept:
            raise CheckpointError(
                f"snapshot of step {first.part.step}: has no entry {name!r}; the entries are {', '.join(map(repr, kept))}"
            )
    if _is_plain(first, state):
        tensors: dict[str, torch.Tensor] = dict(first.tensors())
        for name, value in state.items():
            copies = value if isinstance(value, (nn.Module, torch.Tensor)) else None
            taken = tensors if copies is not None else _Cloned(tensors)
            values.restore(state, name, values.join(kept[name], taken))
    else:
        targets: dict[str, Any] = {}
        for name, value in state.items():
            targets.update(values.targets(kept[name], value, state_key(name)))
        reshard(parts, targets)
        for name in state:
            values.restore(state, name, values.join(kept[name], targets))
    _restore_random(first, content)


class _Cloned(dict[str, torch.Tensor]):
    """What keeps the very tensors that it is given must not be given views of shared memory."""

    def __getitem__(self, key: str) -> torch.Tensor:
        return super().__getitem__(key).clone()


class _Load:
    """One try to load one age: exchange what somebody lacks, then fill. What is found damaged is put into `refused`."""

    def __init__(
        self, folder: Path, held: list[Held], crew: CopyThreadPool, stack: contextlib.ExitStack, refused: _Refused
    ) -> None:
        self._folder, self._held, self._crew, self._stack, self._refused = folder, held, crew, stack, refused

    def into(self, state: _State) -> bool:
        """Return whether `state` holds it now; False, on every rank, when something turned out to be damaged."""
        if any(gather(bool(self._held) and self._held[0].part.whole)):
            parts = send_whole(self._open(self._held)[:1], self._crew)
            if parts:
                fill(parts, state)
            return bool(parts)
        place_ = place()
        own = self._open([one for one in self._held if (one.part.rank, one.part.world_size) == place_])
        if all(gather(all(one.part.world_size == place_[1] for one in self._held))):
            own = send_own(own, [one.part.rank for one in self._held], self._numbered, self._crew)
        if all(gather(bool(own) and _matches(own[0], state))):
            fill(own, state)
            return True
        every = self._open(self._held)
        held = send_missing(self._folder, every)
        if not held:
            return False
        every = self._open(held)
        if not all(gather(len(every) == len(held))):
            return False
        fill(sorted(every, key=lambda part: (part.part.rank, part.part.world_size) != place_), state)
        return True

    def _numbered(self, rank: int) -> list[OpenPart]:
        """Open a good copy of a rank's part."""
        return self._open([one for one in self._held if one.part.rank == rank])

    def _open(self, held: Sequence[Held]) -> list[OpenPart]:
        """Open and prove parts; of whole ones the first good one is enough."""
        parts: list[OpenPart] = []
        for one in held:
            if parts and parts[0].part.whole:
                break
            if any(part.part.rank == one.part.rank for part in parts):
                continue  # a replica of what is here
            try:
                parts.append(self._stack.enter_context(opened(one, self._crew)))
            except DamagedCheckpointError as error:
                _log.warning("skipping a damaged snapshot: %s", error)
                self._refused.add((one.path, one.text))
        return parts


def _own_first(held: Sequence[Held]) -> list[Held]:
    rank, _ = place()
    return sorted(held, key=lambda one: (one.part.rank != rank, one.part.rank))


def _is_plain(part: OpenPart, state: _State) -> bool:
    """Return whether every tensor lies in this part as this rank needs it, none of them distributed."""
    return part.part.whole and not any(isinstance(tensor, DTensor) for tensor in _present(state).values())


def _matches(part: OpenPart, state: _State) -> bool:
    """Return whether this rank's distributed tensors are cut as they were when the part was written."""
    entries = {entry.key: entry for entry in part.part.tensors}
    for key, tensor in _present(state).items():
        entry = entries.get(key)
        if entry is not None and isinstance(tensor, DTensor) and entry.shape != tuple(tensor.to_local().shape):
            return False
    return True


def _present(state: _State) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        values.split(values.state_of(value), state_key(name), tensors)
    return tensors


def _restore_random(part: OpenPart, content: dict[str, Any]) -> None:
    if (part.part.rank, part.part.world_size) != place():
        return  # another rank's random numbers are not ours
    views = {key: view.clone() for key, view in part.tensors().items() if key.startswith(random_key(part.part.rank) + "/")}
    restore_random_state(values.join(content["random"], views))
