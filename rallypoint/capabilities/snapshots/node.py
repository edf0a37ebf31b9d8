"""The node's half: keeps the workers' snapshots, copies them to another node, and saves a last checkpoint on request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from rallypoint.agent.waiting import in_background
from rallypoint.capabilities.base import NodeCapability, NodeContext
from rallypoint.capabilities.snapshots.keeper import SnapshotKeeper
from rallypoint.capabilities.snapshots.threads import in_thread
from rallypoint.capabilities.snapshots.wire import (
    AssignmentSection,
    HeldParts,
    ReplySection,
    ReportSection,
    SavePhase,
    SaveRequest,
    SaveResult,
)
from rallypoint.checkpoint.errors import CheckpointError
from rallypoint.checkpoint.memory import Held
from rallypoint.checkpoint.persist import commit, write
from rallypoint.checkpoint.url_store import open_store
from rallypoint.wire.messages import Assignment, Continue, WorkerReport

__all__ = ["CheckpointSaver", "NodeSnapshots", "create"]

log = logging.getLogger("rallypoint.snapshots")


class NodeSnapshots(NodeCapability):
    """Connects the keeper of snapshots and the saver of checkpoints to the node agent."""

    def __init__(self, context: NodeContext) -> None:
        self._keeper = SnapshotKeeper(
            context.plan,
            context.folder,
            attempt=context.attempt,
            host=context.host,
            secret=context.secret,
            tls=context.tls,
        )
        self._saver = CheckpointSaver(self._keeper, context.changed)

    def environment(self) -> Mapping[str, str]:
        """Return where workers put their snapshots."""
        return self._keeper.environment()

    async def begin(self) -> None:
        """Create the folder of the snapshots."""
        await self._keeper.begin()

    async def close(self) -> None:
        """Wait until the last snapshot is stored, and remove the folder."""
        await self._keeper.close()

    async def before_workers(self, assignment: Assignment) -> None:
        """Note the next node of the ring."""
        self._keeper.assigned(AssignmentSection.of(assignment).replicas, assignment.first_rank)

    def on_failure(self) -> None:
        """Store the last snapshot, if the job is configured so."""
        self._keeper.breakpoint()

    def before_regroup(self) -> Awaitable[None] | None:
        """Return the storing of the last snapshot, if the next round must wait for it."""
        return self._keeper.settled() if self._keeper.flushes else None

    def urgent(self) -> SaveResult | None:
        """Return the result of the last request."""
        return self._saver.result

    def report(self, workers: Sequence[WorkerReport]) -> ReportSection:
        """Return what the node holds."""
        return ReportSection(replicas=self._keeper.replicas, dumps=self._keeper.can_dump, dump=self._saver.result)

    def on_reply(self, reply: Assignment | Continue, *, waiting: bool) -> None:
        """Carry out a request."""
        request = ReplySection.of(reply).dump if isinstance(reply, Continue) else None
        if request is not None:
            self._saver.save(request)


def create(context: NodeContext) -> NodeSnapshots:
    """Return the node's half; scripts may keep snapshots in every job."""
    return NodeSnapshots(context)


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
