"""The node's half: keeps the workers' snapshots, copies them to another node, and saves a last checkpoint on request."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from rallypoint.capabilities.base import NodeCapability, NodeContext
from rallypoint.capabilities.snapshots.keeper import SnapshotKeeper
from rallypoint.capabilities.snapshots.saver import CheckpointSaver
from rallypoint.capabilities.snapshots.wire import AssignmentSection, ReplySection, ReportSection, SaveResult
from rallypoint.wire.messages import Assignment, Continue, WorkerReport

__all__ = ["NodeSnapshots", "create"]


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
