"""An agent's part in a last checkpoint: when it is asked it tells what it holds, writes its share, or finds all complete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rallypoint.agent.snapshots.keeper import SnapshotKeeper
from rallypoint.agent.snapshots.threads import in_thread
from rallypoint.agent.waiting import in_background
from rallypoint.checkpoint.errors import CheckpointError
from rallypoint.checkpoint.memory import Held
from rallypoint.checkpoint.persist import commit, write
from rallypoint.checkpoint.url_store import open_store
from rallypoint.wire.dump import DumpAsk, DumpPhase, DumpTold, Kept

__all__ = ["Dumper"]

log = logging.getLogger("rallypoint.snapshots")


class Dumper:
    """Answers the coordinator's questions, each once (agent/rendezvous/dumping.py).

    Args:
        keeper: of this node's snapshots.
        changed: called when there is another answer.

    """

    def __init__(self, keeper: SnapshotKeeper, changed: Callable[[], None]) -> None:
        self._keeper, self._changed = keeper, changed
        self._task: asyncio.Task[None] | None = None
        self._asked: DumpAsk | None = None
        self.told: DumpTold | None = None

    def take(self, ask: DumpAsk) -> None:
        """Begin to do what is asked, unless that is done or under way."""
        if self._asked == ask:
            return
        self._asked = ask
        self._task = in_background(self._answer(ask), log, "the last checkpoint")

    async def _answer(self, ask: DumpAsk) -> None:
        try:
            self.told = await in_thread(lambda: self._do(ask), "rallypoint-dump")
        except (CheckpointError, OSError) as error:
            log.error("cannot save the last snapshot as a checkpoint: %s", error)  # noqa: TRY400  it says all
            self.told = DumpTold(number=ask.number, phase=ask.phase, error=str(error))
        self._changed()

    # --- In the thread -----------------------------------------------------------------------------------------------------

    def _do(self, ask: DumpAsk) -> DumpTold:
        found = self._keeper.held()
        if ask.phase is DumpPhase.TELL:
            return DumpTold(number=ask.number, phase=ask.phase, kept=_kept(found))
        parts = [one for one in found if one.part.age == (ask.fence, ask.step) and one.part.rank in ask.ranks]
        parts = list({one.part.rank: one for one in parts}.values())
        destination = self._keeper.destination()
        if destination is None or sorted(one.part.rank for one in parts) != sorted(ask.ranks):
            raise CheckpointError(f"snapshot of step {ask.step}: the parts of ranks {ask.ranks} are missing on this node")
        store = open_store(destination.where)
        with self._keeper.storing:
            if ask.phase is DumpPhase.WRITE:
                name = write(parts, store) or ""
            else:
                done = commit(parts[0].part, store, destination.retention)
                if not done.complete:
                    raise CheckpointError(
                        f"checkpoint {done.checkpoint}: parts of the snapshot are missing in {destination.where}"
                    )
                name = done.checkpoint
                log.info("saved the last snapshot as a checkpoint: step=%d path=%s", done.step, name)
        return DumpTold(number=ask.number, phase=ask.phase, checkpoint=name)


def _kept(found: list[Held]) -> tuple[Kept, ...]:
    ages = sorted({(one.part.age, one.part.world_size, one.part.whole) for one in found}, reverse=True)
    return tuple(
        Kept(
            fence=age[0],
            step=age[1],
            world_size=size,
            whole=whole,
            ranks=tuple(sorted({one.part.rank for one in found if one.part.age == age and one.part.whole == whole})),
        )
        for age, size, whole in ages
    )
