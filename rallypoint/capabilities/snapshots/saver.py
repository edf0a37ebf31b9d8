"""A node's part in a last checkpoint: on request it reports its parts, writes its share, or completes the checkpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rallypoint.agent.waiting import in_background
from rallypoint.capabilities.snapshots.keeper import SnapshotKeeper
from rallypoint.capabilities.snapshots.threads import in_thread
from rallypoint.capabilities.snapshots.wire import HeldParts, SavePhase, SaveRequest, SaveResult
from rallypoint.checkpoint.errors import CheckpointError
from rallypoint.checkpoint.memory import Held
from rallypoint.checkpoint.persist import commit, write
from rallypoint.checkpoint.url_store import open_store

__all__ = ["CheckpointSaver"]

log = logging.getLogger("rallypoint.snapshots")


class CheckpointSaver:
    """Carries out the coordinator's requests, each once (`coordinator.py`).

    Args:
        keeper: of this node's snapshots.
        changed: called when there is another result.

    """

    def __init__(self, keeper: SnapshotKeeper, changed: Callable[[], None]) -> None:
        self._keeper, self._changed = keeper, changed
        self._task: asyncio.Task[None] | None = None
        self._request: SaveRequest | None = None
        self.result: SaveResult | None = None

    def save(self, request: SaveRequest) -> None:
        """Begin to carry out a request, unless that is done or under way."""
        if self._request == request:
            return
        self._request = request
        self._task = in_background(self._answer(request), log, "the last checkpoint")

    async def _answer(self, request: SaveRequest) -> None:
        try:
            self.result = await in_thread(lambda: self._do(request), "rallypoint-dump")
        except (CheckpointError, OSError) as error:
            log.error("the agent cannot save the last snapshot as a checkpoint: %s", error)  # noqa: TRY400  it says all
            self.result = SaveResult(number=request.number, phase=request.phase, error=str(error))
        self._changed()

    # --- In the thread -----------------------------------------------------------------------------------------------------

    def _do(self, request: SaveRequest) -> SaveResult:
        found = self._keeper.held()
        if request.phase is SavePhase.TELL:
            return SaveResult(number=request.number, phase=request.phase, kept=_kept(found))
        parts = [one for one in found if one.part.age == (request.fence, request.step) and one.part.rank in request.ranks]
        parts = list({one.part.rank: one for one in parts}.values())
        destination = self._keeper.destination()
        if destination is None or sorted(one.part.rank for one in parts) != sorted(request.ranks):
            ranks = ", ".join(map(str, request.ranks))
            raise CheckpointError(f"snapshot of step {request.step}: the parts of ranks {ranks} are missing on this node")
        store = open_store(destination.where)
        with self._keeper.storing:
            if request.phase is SavePhase.WRITE:
                name = write(parts, store) or ""
            else:
                done = commit(parts[0].part, store, destination.retention)
                if not done.complete:
                    raise CheckpointError(
                        f"checkpoint {done.checkpoint}: parts of the snapshot are missing in {destination.where}"
                    )
                name = done.checkpoint
                log.info("the agent saved the last snapshot as a checkpoint: step=%d path=%s", done.step, name)
        return SaveResult(number=request.number, phase=request.phase, checkpoint=name)


def _kept(found: list[Held]) -> tuple[HeldParts, ...]:
    ages = sorted({(one.part.age, one.part.world_size, one.part.whole) for one in found}, reverse=True)
    return tuple(
        HeldParts(
            fence=age[0],
            step=age[1],
            world_size=size,
            whole=whole,
            ranks=tuple(sorted({one.part.rank for one in found if one.part.age == age and one.part.whole == whole})),
        )
        for age, size, whole in ages
    )
