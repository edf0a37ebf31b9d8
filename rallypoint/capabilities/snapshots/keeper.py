"""Keeps the workers' snapshots: makes their folder, persists the last one at a breakpoint, and removes it all at the end.

A breakpoint is when a worker ended badly, or the round is over for another reason than success. Persisting runs in a thread of
its own: the next workers start meanwhile, take up the same snapshot from memory, and write into other buffers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.tls import Tls
from rallypoint.capabilities.snapshots.replicas import Replicas
from rallypoint.capabilities.snapshots.wire import PlanSection
from rallypoint.checkpoint.errors import CheckpointError
from rallypoint.checkpoint.memory import HEADER, Held, everything, own
from rallypoint.checkpoint.owned import OwnedFolder, new_name, own_folder, shared_memory
from rallypoint.checkpoint.persist import Destination, persist, read_destination
from rallypoint.checkpoint.store import Store
from rallypoint.checkpoint.url_store import open_store
from rallypoint.wire import env
from rallypoint.wire.fence import Fence
from rallypoint.wire.plan import ElasticMode, Plan

__all__ = ["SnapshotKeeper"]

log = logging.getLogger("rallypoint.snapshots")

#: Seconds that the end of an agent, or with `ucp` the next round, waits for what is being persisted.
PATIENCE = 60.0

#: Seconds between two looks whether the parts of other nodes have arrived.
_LOOK = 0.5

_Age = tuple[Fence, int]


class SnapshotKeeper:
    """One node's snapshots.

    Args:
        plan: of the job.
        folder: of the agent, for where there is no shared memory.
        attempt: of the job; `secret` is its secret, and `host` where other nodes reach this one: for snapshots of theirs.
        patience: see `PATIENCE`.

    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        attempt: int = 1,
        host: str = "",
        secret: str = "",
        tls: Tls | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._plan, self._settings, self._patience = plan, PlanSection.of(plan), patience
        self._wanted = self._settings.save_at_breakpoint or self._settings.elastic_mode is ElasticMode.UCP
        self._path = shared_memory(folder) / new_name()
        self._owned: OwnedFolder | None = None
        self._thread: threading.Thread | None = None
        self._again = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._persisted: _Age | None = None
        self._looked_at: _Age | None = None
        self._can_dump = False
        #: Held by whoever writes to storage: two that write one part would tear it.
        self.storing = threading.Lock()
        kept = self._settings.replica_every > 0 and bool(secret)
        self._replicas = Replicas(self._path, plan, attempt=attempt, host=host, secret=secret, tls=tls) if kept else None

    @property
    def flushes(self) -> bool:
        """Whether the next round waits for what is being persisted."""
        return self._settings.elastic_mode is ElasticMode.UCP

    async def begin(self) -> None:
        """Make the folder. Where that cannot be, workers find none, and nothing is kept."""
        try:
            self._owned = await asyncio.to_thread(own_folder, self._path)
        except OSError as error:
            log.warning(
                "in-memory snapshots are off, because the agent cannot create the folder %s: %s", self._path, error.strerror
            )
            return
        if self._replicas is not None:
            await self._replicas.begin()

    def environment(self) -> Mapping[str, str]:
        """Return what workers are told."""
        told = {env.SNAPSHOT_DIR: str(self._path)}
        if self._replicas is not None:
            told[env.SNAPSHOT_REPLICA] = str(self._settings.replica_every)
        return {**told, env.SAVE_AT_BREAKPOINT: "1"} if self._wanted else told

    @property
    def replicas(self) -> str:
        """Where other nodes' snapshots are taken, "" where they are not."""
        return "" if self._replicas is None else self._replicas.address

    def assigned(self, target: str, first_rank: int) -> None:
        """Note the server of the next node of the ring, "" without one, and the first rank of this node."""
        if self._replicas is not None:
            self._replicas.assigned(target, range(first_rank, first_rank + self._plan.nproc_per_node))

    @property
    def can_dump(self) -> bool:
        """Whether a worker has left a snapshot here, and it is known where a checkpoint would go."""
        if not self._can_dump and self._owned is not None:
            # Each report asks: where no worker keeps snapshots this is one look into one folder.
            held = any(next(area.glob(f"*{HEADER}"), None) for area in _folders(self._owned.path))
            self._can_dump = held and self.destination() is not None
        return self._can_dump

    def held(self) -> list[Held]:
        """Return all that is held, of other nodes, too, newest first."""
        return [] if self._owned is None else everything(self._owned.path)

    def destination(self) -> Destination | None:
        """Return where snapshots go, None where neither the script nor the job says that."""
        told = None if self._owned is None else read_destination(self._owned.path)
        if told is not None:
            return told
        return Destination(where=self._plan.checkpoint_dir) if self._plan.checkpoint_dir else None

    def breakpoint(self) -> None:
        """Begin to persist the last snapshot, where the job wants that; returns at once. Call it in the agent's loop."""
        if not self._wanted or self._owned is None:
            return
        if self._thread is not None:
            self._again = True
            return
        self._idle.clear()
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._persist, args=(self._owned.path, loop), name="rallypoint-persist", daemon=True
        )
        self._thread.start()

    async def settled(self) -> None:
        """Return when nothing is being persisted and all of the last snapshot is in storage, or when patience is over."""
        try:
            await asyncio.wait_for(self._arrival(), self._patience)
        except asyncio.TimeoutError:
            log.warning(
                "the agent did not store the last snapshot completely within %g s; the next round starts before the snapshot "
                "is stored",
                self._patience,
            )

    async def close(self) -> None:
        """Finish, for as long as patience lasts, and remove the folder."""
        try:
            await asyncio.wait_for(self._idle.wait(), self._patience)
        except asyncio.TimeoutError:
            log.warning(
                "the agent did not store the last snapshot within %g s; the snapshot is lost, because the agent exits",
                self._patience,
            )
        if self._replicas is not None:
            self._replicas.close()
        if self._owned is not None:
            await asyncio.to_thread(self._owned.remove)
            self._owned = None

    async def _arrival(self) -> None:
        await self._idle.wait()
        # No event comes from what other machines do to a storage.
        while self._persisted is not None and not await asyncio.to_thread(self._is_stored, self._persisted):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)

    def _is_stored(self, age: _Age) -> bool:
        destination = self.destination()
        if destination is None:
            return True
        return any((m.granted, m.step) >= age for m in open_store(destination.where).complete())

    # --- In the thread -----------------------------------------------------------------------------------------------------

    def _persist(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        try:
            found = own(everything(folder))
            destination = self.destination()
            if found and destination is None:
                log.warning(
                    "the agent cannot write the last in-memory snapshot to storage, because neither the script nor the job "
                    "sets a checkpoint folder"
                )
            elif found and destination is not None and found[0].part.age != self._looked_at:
                self._persist_to(open_store(destination.where), found, destination)
        except (CheckpointError, OSError) as error:
            log.error("the agent cannot write the last in-memory snapshot to storage: %s", error)  # noqa: TRY400  it says all
        finally:
            loop.call_soon_threadsafe(self._done)

    def _persist_to(self, store: Store, found: list[Held], destination: Destination) -> None:
        newest = found[0].part.age
        before = [one for one in found if one.part.age < newest]
        ours = {one.part.rank for one in found if one.part.age == newest}
        with self.storing:
            done = persist(found, store, destination.retention)
            if before and not found[0].part.whole and len(ours) < found[0].part.world_size:
                # Another node may have been stopped a step earlier: what both have is one of the last two.
                persist(before, store, destination.retention)
                newest = before[0].part.age
        self._looked_at, self._persisted = found[0].part.age, newest
        if done is None:
            log.info(
                "the last snapshot (step %d) is already in storage, so the agent does not store it again", found[0].part.step
            )
        elif done.complete:
            log.info("the agent stored the last snapshot: step=%d path=%s", done.step, done.checkpoint)
        else:
            log.info(
                "the agent stored this node's part of the snapshot of step %d; other nodes have not stored their parts yet",
                done.step,
            )

    def _done(self) -> None:
        self._thread = None
        self._idle.set()
        if self._again:
            self._again = False
            self.breakpoint()


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as found:
            return [Path(one.path) for one in found if one.is_dir()]
    except OSError:
        return []
