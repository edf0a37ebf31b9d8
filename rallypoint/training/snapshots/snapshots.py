"""Three lines that keep a training's last step in memory that outlives its worker, and bring it back.

```python
snapshots = Snapshots({"model": model, "optimizer": optimizer})
for step in range(snapshots.load() or 0, steps):
    ...
    snapshots.save(step + 1)
```
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import tempfile
from collections.abc import MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rallypoint.checkpoint.errors import CheckpointError, DamagedCheckpointError, NoRoomError
from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.checkpoint.lineage import lineage_of, take_lineage
from rallypoint.checkpoint.manifest import Checkpoint, Manifest
from rallypoint.checkpoint.memory import Held, pinned
from rallypoint.checkpoint.owned import OwnedFolder, new_name, own_folder, shared_memory
from rallypoint.checkpoint.persist import Destination, is_snapshot, persist, write_destination
from rallypoint.checkpoint.store import Store
from rallypoint.checkpoint.url_store import open_store
from rallypoint.training.context import current_job, environment_int
from rallypoint.training.reporting import report_resumed
from rallypoint.training.signed import agree, grouped, place
from rallypoint.training.snapshots.choosing import Age, newer_than_stored
from rallypoint.training.snapshots.copy_threads import CopyThreadPool, copy_thread_count
from rallypoint.training.snapshots.exchange import gather
from rallypoint.training.snapshots.loading import load_from_memory, load_from_store
from rallypoint.training.snapshots.memory import Replicas, SnapshotMemory, Writer
from rallypoint.wire import env
from rallypoint.wire.fence import Fence

__all__ = ["Snapshots", "agent_folder", "shared_lineage", "snapshot_folder"]

_log = logging.getLogger(__name__)

_WHERE_WE_ARE = (env.ATTEMPT, env.TERM, env.ROUND, "RANK", "WORLD_SIZE")


class Snapshots:
    """The snapshots of one training state: every rank has one of these, for the same state.

    `load` is a collective and comes first; `save` is none, and may be called in every step. Without an agent the memory lasts
    as long as this process: `save` still persists, and `load` finds what was persisted.

    Only load what you trust: this unpickles.

    Args:
        state: names to objects with `state_dict` and `load_state_dict`, to tensors, and to anything that pickles; read anew at
            each `save`.
        storage: where snapshots are persisted: a folder that all nodes see or an fsspec URL (extra `fsspec`). None takes
            RALLYPOINT_CHECKPOINT_DIR; without that nothing is persisted.
        persist_every: steps; a snapshot of a step that is a multiple of it is persisted in the background. 0: only the agent
            persists, and only the last one of a worker that died (`save_at_breakpoint` of the job).
        keep: so many of the newest persisted snapshots stay.
        keep_every: and those whose step is a multiple of it; 0: no more.
        lazy: what only the state's optimizers change is copied while the next step's forward and backward pass run, and an
            optimizer's step waits for it. Not for scripts that change weights between `save` and the next optimizer step.

    Raises:
        CheckpointError: for a wrong argument, or storage that cannot be opened.

    """

    def __init__(
        self,
        state: MutableMapping[str, Any],
        *,
        storage: str | os.PathLike[str] | None = None,
        persist_every: int = 0,
        keep: int = 2,
        keep_every: int = 0,
        lazy: bool = True,
    ) -> None:
        for name, number, least in (("persist_every", persist_every, 0), ("keep", keep, 1), ("keep_every", keep_every, 0)):
            if type(number) is not int or number < least:
                raise CheckpointError(f"{name}: {number!r} is not allowed; expected a whole number of at least {least}")
        where = os.fspath(storage) if storage is not None else os.environ.get(env.CHECKPOINT_DIR, "")
        if persist_every and not where:
            raise CheckpointError(
                f"storage: is missing; pass a folder or a URL, or set the environment variable {env.CHECKPOINT_DIR}"
            )
        self._state, self._every = state, persist_every
        self._destination = Destination(where=where, count=keep, interval=keep_every) if where else None
        self._store: Store | None = open_store(where) if where else None
        self._folder = snapshot_folder()
        threads = copy_thread_count(environment_int(os.environ, "LOCAL_WORLD_SIZE", default=1))
        self._crew = CopyThreadPool(threads)
        at_breakpoint = os.environ.get(env.SAVE_AT_BREAKPOINT, "") == "1"
        replicated = 0 if agent_folder() is None else environment_int(os.environ, env.SNAPSHOT_REPLICA, default=0)
        local_rank = environment_int(os.environ, "LOCAL_RANK", default=0)
        self._replicas = Replicas(self._folder, local_rank, replicated) if replicated else None
        self._here: tuple[str | None, ...] = ()
        self._memory = SnapshotMemory(
            self._folder,
            _writer(""),
            buffers=2 + (1 if persist_every or at_breakpoint else 0) + (2 if replicated else 0),
            every=replicated,
            threads=threads,
            lazy=lazy,
            complete=self._completed if persist_every or replicated else None,
        )
        if self._destination is not None and self._memory.writer.local_rank == 0:
            write_destination(self._folder, self._destination)
        self._persister = ThreadPoolExecutor(1, thread_name_prefix="rallypoint-persist")
        self._persisting: Future[None] | None = None
        self._no_room = False
        self._memory.reserve(state)

    def save(self, step: int) -> bool:
        """Keep the state after `step` finished steps; returns as soon as training may go on.

        Returns False when there is no room in memory: that is logged once, with the number of bytes that are missing.

        Raises:
            CheckpointError: for a wrong step, or when this worker is left over from an earlier round.

        """
        if type(step) is not int or step < 0:
            raise CheckpointError(f"step: {step!r} is not allowed; expected a whole number of at least 0")
        self._move()
        if self._replicas is not None and self._replicas.due(step):
            self._memory.wait()
            self._replicas.settle()
        try:
            self._memory.take(step, self._state)
        except NoRoomError as error:
            if not self._no_room:
                _log.error("this worker takes no in-memory snapshots: %s", error)
            self._no_room = True
            return False
        self._no_room = False
        return True

    def load(self) -> int | None:
        """Take up the newest complete snapshot, of memory or else of storage, and return its step; None where there is none.

        A damaged one is logged and passed over for the one before.

        Raises:
            CheckpointError: on every rank, when there are some in storage but none can be read, or one lacks an entry.

        """
        self._memory.wait()
        lineage = shared_lineage(self._folder)
        self._move()
        stored = agree(lambda: None if self._store is None else next(iter(self._store.complete()), None))
        age = load_from_memory(
            self._folder, self._state, self._crew, wanted=lambda age: newer_than_stored(age, lineage, stored)
        )
        if age is not None:
            return self._resumed(age, "memory")
        step = None if stored is None else self._load_stored()
        if step is None:
            report_resumed(0)
        self._memory.reserve(self._state)
        return step

    def prepared(self) -> None:
        """Return when the memory for the next snapshots is allocated and faulted in, as far as there is room."""
        self._memory.prepared()

    def wait(self) -> None:
        """Return when the last snapshot is complete, and what was to be persisted is persisted; raises what went wrong."""
        self._memory.wait()
        persisting, self._persisting = self._persisting, None
        if persisting is not None:
            persisting.result()

    def close(self) -> None:
        """Finish what is under way and end the threads. The snapshots stay for whoever comes after."""
        with contextlib.suppress(CheckpointError):
            self.wait()
        self._memory.close()
        if self._replicas is not None:
            self._replicas.close()
        self._persister.shutdown(wait=True)
        self._crew.close()

    def _resumed(self, age: Age, where: str) -> int:
        _, step = age
        report_resumed(step, where)
        self._memory.reserve(self._state)
        return step

    def _move(self) -> None:
        """Notice where this process is: it may live on in another round."""
        here = _whereabouts()
        if here != self._here:
            self._memory.move(_writer(take_lineage(self._folder, _job_uid())))
            self._here = here

    # --- Storage -----------------------------------------------------------------------------------------------------------

    def _load_stored(self) -> int | None:
        store = self._store
        assert store is not None
        if isinstance(store, FolderStore):
            # Beside snapshots the helper's own checkpoints may lie there: it reads both.
            from rallypoint.training.stored import load_stored  # noqa: PLC0415  torch's own checkpoints take long to import

            return load_stored(store.path, self._state)
        passed_over: list[str] = []
        while (choice := agree(lambda: _choose(store, passed_over))) is not None:
            checkpoint, manifest = choice
            try:
                load_from_store(store, checkpoint, manifest, self._state, self._crew)
            except DamagedCheckpointError as error:
                _log.warning("skipping a damaged checkpoint: %s", error)
                passed_over.append(checkpoint.path.name)
                continue
            return self._resumed((checkpoint.fence, checkpoint.step), str(checkpoint.path))
        if passed_over:
            names = ", ".join(passed_over)
            raise CheckpointError(f"storage: all checkpoints are damaged: {names}")
        return None

    def _completed(self, step: int) -> None:
        """Do what is due with a snapshot; called before its buffer can be written again."""
        if self._replicas is not None and self._replicas.due(step):
            self._replicas.offer(self._memory.writer.fence, step)
        if self._every and step % self._every == 0:
            self._persist_due(step)

    def _persist_due(self, step: int) -> None:
        if self._persisting is not None and not self._persisting.done():
            _log.warning(
                "the snapshot of step %d is not written to storage, because this worker is still writing an earlier snapshot",
                step,
            )
            return
        if self._persisting is not None:
            self._persisting.result()
        found = [one for one in self._memory.complete_ones() if one.part.step == step]
        if not found or (found[0].part.whole and found[0].part.rank != 0):
            return
        pin = contextlib.ExitStack()
        pin.enter_context(pinned(found[0]))
        self._persisting = self._persister.submit(self._persist, found[0], pin)

    def _persist(self, one: Held, pin: contextlib.ExitStack) -> None:
        assert self._store is not None
        assert self._destination is not None
        with pin:
            try:
                persist([one], self._store, self._destination.retention)
            except OSError as error:
                raise CheckpointError(f"step {one.part.step}: cannot store the snapshot: {error}") from error


def shared_lineage(folder: Path) -> str:
    """Return the name of this run, the same on all ranks; a collective."""
    told = gather(lineage_of(folder))
    name = next(filter(None, told), "") or agree(lambda: take_lineage(folder, _job_uid()))
    return take_lineage(folder, name)


def agent_folder() -> Path | None:
    """Return the agent's folder for snapshots, None where there is no agent, or none that could make one."""
    named = os.environ.get(env.SNAPSHOT_DIR)
    return Path(named) if named and Path(named).is_dir() else None


def snapshot_folder() -> Path:
    """Return the agent's folder for snapshots; without an agent, one that goes with this process."""
    named = agent_folder()
    if named is not None:
        return named
    global _private  # noqa: PLW0603  one for all states of this process
    if _private is None:
        _private = own_folder(shared_memory(Path(tempfile.gettempdir())) / new_name())
        atexit.register(_private.remove)
    return _private.path


_private: OwnedFolder | None = None


def _whereabouts() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, _WHERE_WE_ARE))


def _job_uid() -> str:
    job = current_job()
    return "" if job is None else job.uid


def _writer(lineage: str) -> Writer:
    job = current_job()
    rank, world_size = place() if grouped() or job is None else (job.rank, job.world_size)
    return Writer(
        job=lineage,
        fence=Fence(attempt=1) if job is None else job.fence,
        rank=rank,
        local_rank=environment_int(os.environ, "LOCAL_RANK", default=0),
        world_size=world_size,
    )


def _choose(store: Store, passed_over: list[str]) -> tuple[Checkpoint, Manifest] | None:
    manifests = {(m.fence, m.step): m for m in store.complete() if is_snapshot(m)}
    for checkpoint in store.named():
        manifest = manifests.get((checkpoint.fence, checkpoint.step))
        if manifest is not None and checkpoint.path.name not in passed_over:
            return checkpoint, manifest
    return None
