"""Checkpoints that survive a kill at any point: torch.distributed.checkpoint writes, a manifest and a renaming complete."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from rallypoint.checkpoint import folder
from rallypoint.checkpoint.lineage import take_lineage
from rallypoint.checkpoint.manifest import (
    TEMPORARY,
    VALUES,
    Checkpoint,
    Manifest,
    claim_fence,
    describe,
    name_of,
    refuse_stale,
    verify,
)
from rallypoint.training import reporting, values
from rallypoint.training.context import current_job
from rallypoint.training.errors import CheckpointError, DamagedCheckpointError
from rallypoint.training.phases import phase
from rallypoint.training.randomness import random_state
from rallypoint.training.reporting import report_progress
from rallypoint.training.rounds import current_rounds
from rallypoint.training.signed import agree, place
from rallypoint.training.snapshots.choosing import newer_than_stored
from rallypoint.training.snapshots.copy_threads import CopyThreadPool
from rallypoint.training.snapshots.loading import load_from_memory
from rallypoint.training.snapshots.snapshots import Snapshots, agent_folder, shared_lineage
from rallypoint.training.stored import key_of, load_stored, quiet, random_key, who_failed
from rallypoint.training.values import position_of
from rallypoint.wire import env
from rallypoint.wire.fence import Fence

__all__ = ["Checkpoints", "StepSnapshots", "run_name"]

_log = logging.getLogger(__name__)


def run_name(uid: str) -> str:
    """Return what tells this run's checkpoints from those of another: the job's uid, where it has one."""
    folder = agent_folder()
    return uid if uid or folder is None else take_lineage(folder)


class StepSnapshots:
    """What `Checkpoints` has of snapshots; does nothing unless the job wants the last one saved."""

    def __init__(self) -> None:
        self._snapshots: Snapshots | None = None
        self._last: int | None = None

    def load(self, state: MutableMapping[str, Any], newest: Callable[[], Manifest | None]) -> int | None:
        """Take up a snapshot in memory that is not older than the newest checkpoint; a collective where there is an agent."""
        folder = _wanted()
        if folder is None:
            return None
        lineage, stored, crew = shared_lineage(folder), agree(newest), CopyThreadPool(1)
        try:
            age = load_from_memory(folder, state, crew, wanted=lambda age: newer_than_stored(age, lineage, stored))
        finally:
            crew.close()
        if age is None:
            return None
        self._last = age[1]
        reporting.report_resumed(age[1], "memory")
        return age[1]

    def follow(self, state: MutableMapping[str, Any], directory: Path) -> None:
        """Take a snapshot at each step that is reported from now on, where the job wants the last one saved."""
        if _wanted() is None:
            return
        fixed = [name for name, value in state.items() if not _lives(value)]
        if fixed:
            _log.warning(
                "snapshots at each step are off, because these entries of the state are neither tensors nor objects with "
                "state_dict() and load_state_dict(): %s",
                ", ".join(fixed),
            )
            return
        if self._snapshots is not None:
            self._snapshots.close()
        self._snapshots = Snapshots(state, storage=directory)
        reporting.follow_steps(self._take)

    def _take(self, step: int) -> None:
        if self._snapshots is not None and step != self._last:
            self._snapshots.save(step)
            self._last = step


def _wanted() -> Path | None:
    """Return where snapshots are kept without a line, None where the job does not want that: they may be another state's."""
    return agent_folder() if os.environ.get(env.SAVE_AT_BREAKPOINT) == "1" else None


def _lives(value: object) -> bool:
    """Return whether an entry of a state is changed in place, so that it can be read at any time."""
    return isinstance(value, torch.Tensor) or (hasattr(value, "state_dict") and hasattr(value, "load_state_dict"))


@dataclass(frozen=True, kw_only=True)
class _Written:
    """What all ranks have written of one checkpoint: `files` by their names."""

    fence: Fence
    step: int
    world_size: int
    files: set[str]
    position: dict[str, Any]


class Checkpoints:
    """The checkpoints of one job in one folder, which every node must see.

    `save` and `load` are collectives: every rank calls them with the same arguments. Without a process group the process
    is a world of its own. A state maps names to what is kept: objects with `state_dict` and `load_state_dict` (model,
    optimizer, scheduler, sampler), tensors, and anything that pickles. A tensor that is not a DTensor is taken to be the
    same on all ranks, as under DDP. What was written by a world of one size can be read by one of another.

    Only load what you trust: like `torch.distributed.checkpoint`, this unpickles.

    Args:
        directory: the folder; None takes RALLYPOINT_CHECKPOINT_DIR.
        keep: how many of the newest complete checkpoints stay; older ones are deleted after each save, and nothing else.

    Raises:
        CheckpointError: when no folder is named, or `keep` is less than 1.

    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, keep: int = 2) -> None:
        if keep < 1:
            raise CheckpointError(f"keep: {keep!r} is not allowed; expected a whole number of at least 1")
        named = directory if directory is not None else os.environ.get(env.CHECKPOINT_DIR)
        if not named:
            raise CheckpointError(
                f"directory: is missing; pass a folder, or set checkpoint_dir in the job or {env.CHECKPOINT_DIR}"
            )
        self.directory, self.keep = Path(named), keep
        self._claimed: tuple[Fence | None, Fence] | None = None
        self._steps = StepSnapshots()

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint by (fence, step), or None; this rank's own look, not a collective."""
        return folder.newest(self.directory)

    def save(self, step: int, state: MutableMapping[str, Any]) -> Checkpoint:
        """Write `state` after `step` finished steps; when this returns, on any rank, it is complete and on disk.

        A step that this round has saved before is not written again.

        Raises:
            CheckpointError: on every rank, when it could not be written (a full disk, a stale writer); the complete ones
                stay as they are.

        """
        if type(step) is not int or step < 0:  # neither a bool nor a number of numpy, which the name would show
            raise CheckpointError(f"step: {step!r} is not allowed; expected a whole number of at least 0")
        # All of it: to agree and to sync may take longer than to write.
        with phase("checkpoint"):
            return self._save(step, state)

    def _save(self, step: int, state: MutableMapping[str, Any]) -> Checkpoint:
        tensors: dict[str, torch.Tensor] = {}
        kept = {name: values.split(values.state_of(value), key_of(name), tensors) for name, value in state.items()}
        temporary, fence = agree(lambda: self._open(step, kept))
        if temporary is not None:
            rank, world_size = place()
            entries = {**tensors, random_key(rank): random_state()}
            files = self._write(temporary, entries)
            written = _Written(fence=fence, step=step, world_size=world_size, files=files, position=position_of(kept))
            agree(lambda: self._complete(temporary, written))
        checkpoint = Checkpoint(fence=fence, step=step, path=self.directory / name_of(fence, step))
        report_progress(step, checkpoint=checkpoint.path)
        return checkpoint

    def load(self, state: MutableMapping[str, Any]) -> int | None:
        """Take up the newest complete checkpoint and return its step, or None when the folder holds none.

        In a job with `save_at_breakpoint` a newer snapshot in memory wins, and from then on one is taken at each step that is
        reported (docs/guides/snapshots.md).

        Objects load it, tensors are filled, and any other value is replaced in `state`. Entries of the checkpoint that
        `state` does not name are left alone. A damaged checkpoint is logged and passed over for the one before. Where the
        world's size is that of the save, each rank takes up its random states too. A process that joins a world in which others
        live on loads nothing, and is sent their state by :func:`elastic`.

        Raises:
            CheckpointError: on every rank, when there are checkpoints but all are damaged, or one lacks an entry of `state`.

        """
        rounds = current_rounds()
        if rounds is not None and rounds.rehearses:
            return None  # the others are past this point, and what they have is newer
        step = self._steps.load(state, lambda: next(iter(folder.complete(self.directory)), None))
        if step is None:
            step = load_stored(self.directory, state)
        self._steps.follow(state, self.directory)
        return step

    def _open(self, step: int, kept: dict[str, Any]) -> tuple[Path | None, Fence]:
        """Make the temporary folder with all that is not a tensor; no folder when this step is complete already."""
        self.directory.mkdir(parents=True, exist_ok=True)
        fence = self._claim()
        target = Checkpoint(fence=fence, step=step, path=self.directory / name_of(fence, step))
        if target.path.exists():
            try:
                verify(target)
            except DamagedCheckpointError:
                folder.discard(target)
            else:
                return None, fence
        temporary = target.path.with_name(target.path.name + TEMPORARY)
        folder.remove(temporary)
        temporary.mkdir()
        buffer = io.BytesIO()
        torch.save(kept, buffer)
        with _removed_on_error(temporary):
            folder.write_file(temporary / VALUES, buffer.getvalue())
        return temporary, fence

    def _claim(self) -> Fence:
        granted, uid = _granted()
        if self._claimed is None or self._claimed[0] != granted:
            fence = claim_fence(folder.listing(self.directory), folder.complete(self.directory), uid, granted)
            folder.sweep(self.directory, below=fence)
            self._claimed = (granted, fence)
        fence = self._claimed[1]
        refuse_stale(fence, folder.listing(self.directory))
        return fence

    def _write(self, temporary: Path, entries: dict[str, Any]) -> set[str]:
        """Let every rank write its share; returns, on rank 0, the names of the files that were written."""
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            with quiet():
                metadata = state_dict_saver.save(entries, storage_writer=_Writer(temporary), planner=planner)
        except CheckpointException as error:
            if place()[0] == 0:
                folder.remove(temporary)
            raise CheckpointError(f"cannot write the checkpoint {temporary}: {who_failed(error)}") from error
        return {info.relative_path for info in (metadata.storage_data or {}).values()} if metadata else set()

    def _complete(self, temporary: Path, written: _Written) -> None:
        granted, uid = _granted()
        with _removed_on_error(temporary):
            files = describe(temporary)
            unseen = sorted(written.files - set(files))
            if unseen:
                raise CheckpointError(
                    f"checkpoint folder {self.directory}: rank 0 cannot find the files {unseen}, which other ranks wrote; all "
                    "nodes must share this folder"
                )
            manifest = Manifest(
                job=uid,
                granted=granted or Fence(attempt=1),
                fence=written.fence,
                step=written.step,
                world_size=written.world_size,
                torch=str(torch.__version__),
                files=files,
                position=written.position,
            )
            folder.publish(temporary, manifest)
        folder.retain(self.directory, self.keep)


class _Writer(FileSystemWriter):
    """torch's writer, which also tells that the disk is full: torch.save hides an `OSError` behind one of its own."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            hidden: BaseException | None = error
            while hidden is not None and not isinstance(hidden, OSError):
                hidden = hidden.__context__
            raise hidden or error  # noqa: B904 - the chain that it was taken from would only repeat it


def _granted() -> tuple[Fence | None, str]:
    """Return this worker's fence as its job counts, and the job's uid."""
    job = current_job()
    return (None, "") if job is None else (job.fence, run_name(job.uid))


@contextmanager
def _removed_on_error(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        folder.remove(temporary)
        raise
