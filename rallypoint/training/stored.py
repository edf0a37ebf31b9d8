"""Reading the checkpoints of a folder: the newest that every rank can read, written by the helper or persisted from memory."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader

from rallypoint.checkpoint import folder
from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.checkpoint.manifest import VALUES, Checkpoint, Manifest, verify
from rallypoint.checkpoint.persist import is_snapshot
from rallypoint.training import values
from rallypoint.training.errors import CheckpointError, DamagedCheckpointError
from rallypoint.training.randomness import restore_random_state
from rallypoint.training.reporting import report_resumed
from rallypoint.training.signed import agree, place
from rallypoint.training.snapshots.copy_threads import CopyThreadPool
from rallypoint.training.snapshots.loading import load_from_store

__all__ = ["key_of", "load_stored", "quiet", "random_key", "who_failed"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The checkpoint that all ranks load: `values` is the content of its `values.pt`, if it has one."""

    checkpoint: Checkpoint
    manifest: Manifest
    values: bytes


def load_stored(directory: Path, state: MutableMapping[str, Any]) -> int | None:
    """Take up the newest complete checkpoint of a folder and return its step, None when there is none; a collective.

    Raises:
        CheckpointError: on every rank, when there are checkpoints but all are damaged, or one lacks an entry of `state`.

    """
    passed_over: dict[Path, str] = {}
    while (choice := agree(lambda: _choose(directory, passed_over))) is not None:
        try:
            _read(choice, state)
        except DamagedCheckpointError as error:
            passed_over[choice.checkpoint.path] = str(error)
            continue
        found = choice.checkpoint
        report_resumed(found.step, str(found.path))
        return found.step
    report_resumed(0)
    return None


def _choose(directory: Path, passed_over: dict[Path, str]) -> _Choice | None:
    reasons = dict(passed_over)
    for checkpoint in folder.listing(directory):
        if checkpoint.path in passed_over:
            continue
        try:
            manifest = verify(checkpoint)
            content = b"" if is_snapshot(manifest) else (checkpoint.path / VALUES).read_bytes()
        except (DamagedCheckpointError, OSError) as error:
            _log.warning("skipping a damaged checkpoint: %s", error)
            reasons[checkpoint.path] = str(error)
            continue
        return _Choice(checkpoint=checkpoint, manifest=manifest, values=content)
    if reasons:
        told = "; ".join(reasons.values())
        raise CheckpointError(
            f"{directory}: no readable checkpoint; to start without a checkpoint, move the damaged checkpoints away: {told}"
        )
    return None


def _read(choice: _Choice, state: MutableMapping[str, Any]) -> None:
    path = choice.checkpoint.path
    if is_snapshot(choice.manifest):
        _read_snapshot(choice.checkpoint, choice.manifest, state)
        return
    kept = torch.load(io.BytesIO(choice.values), map_location="cpu", weights_only=False)
    for name in state:
        if name not in kept:
            raise CheckpointError(f"{path}: has no entry {name!r}; the entries are {', '.join(map(repr, kept))}")
    entries: dict[str, Any] = {}
    for name, value in state.items():
        entries.update(values.targets(kept[name], value, key_of(name)))
    rank, world_size = place()
    own_random = random_key(rank) if world_size == choice.manifest.world_size else None
    if own_random is not None:
        entries[own_random] = None
    _fetch(path, entries)
    for name in state:
        values.restore(state, name, values.join(kept[name], entries))
    if own_random is not None:
        restore_random_state(entries[own_random])


def _read_snapshot(checkpoint: Checkpoint, manifest: Manifest, state: MutableMapping[str, Any]) -> None:
    """Take up a snapshot that was persisted into a folder; raises `DamagedCheckpointError` on every rank."""
    crew = CopyThreadPool(1)
    try:
        load_from_store(FolderStore(checkpoint.path.parent), checkpoint, manifest, state, crew)
    finally:
        crew.close()


def _fetch(path: Path, entries: dict[str, Any]) -> None:
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        with quiet():
            state_dict_loader.load(entries, storage_reader=FileSystemReader(path), planner=planner)
    except CheckpointException as error:
        reason = f"{path}: {who_failed(error)}; check that all nodes share this folder"
        _log.warning("this worker cannot read a checkpoint (%s); it tries the previous checkpoint", reason)
        raise DamagedCheckpointError(reason) from error


def key_of(name: str) -> str:
    """Return the name under which torch keeps the tensors of an entry of the state."""
    return f"state/{name}"


def random_key(rank: int) -> str:
    """Return the name under which torch keeps a rank's random states."""
    return f"random/{rank}"


def who_failed(error: CheckpointException) -> str:
    """Return who failed at what; `CheckpointException` itself prints a traceback for every rank."""
    told = {rank: f"{type(cause).__name__}: {cause}" for rank, (cause, _) in sorted(error.failures.items())}
    return "; ".join(f"rank {rank}: {text}" for rank, text in told.items())


@contextmanager
def quiet() -> Iterator[None]:
    """Without a process group torch warns at every call that there is none; here that is a supported way to run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield
