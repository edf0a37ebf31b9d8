"""Worker commands on a node: forward them to the workers, and report the answers."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from rallypoint.capabilities.base import NodeCapability, NodeContext
from rallypoint.capabilities.commands.commands import Action, NodeCommands, Tell
from rallypoint.capabilities.commands.wire import ReplySection, ReportSection
from rallypoint.wire import line
from rallypoint.wire.masked import mask_of
from rallypoint.wire.messages import Assignment, Continue, WorkerReport
from rallypoint.wire.wish import NodeAnswer

__all__ = ["Forwarder", "create"]

log = logging.getLogger("rallypoint.node")


class Forwarder(NodeCapability):
    """The node's half of the capability."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._state = NodeCommands(workers=context.plan.nproc_per_node)
        self._after_start: tuple[Action, ...] = ()

    def urgent(self) -> NodeAnswer | None:
        """Return the answers."""
        return self._state.told

    def report(self, workers: Sequence[WorkerReport]) -> ReportSection:
        """Return the answers."""
        return ReportSection(wish=self._state.told)

    def on_reply(self, reply: Assignment | Continue, *, waiting: bool) -> None:
        """Forward a new command."""
        wish = ReplySection.of(reply).wish if isinstance(reply, Continue) else None
        if wish is not None:
            self._take(self._state.heard(wish))

    async def before_workers(self, assignment: Assignment) -> None:
        """Note the ranks of the round."""
        self._state, self._after_start = self._state.started(assignment.first_rank)

    def after_workers(self) -> None:
        """Stop workers that started although the job stops."""
        self._take((self._state, self._after_start))

    def on_message(self, local_rank: int, message: line.FromWorker) -> None:
        """Note what a worker supports, or that it executed a command."""
        if isinstance(message, line.Hello):
            self._take(self._state.announced(local_rank, message.abilities))
        elif isinstance(message, line.Done):
            mask = mask_of(self._context.plan.env, self._context.plan.args)
            self._take((self._state.done(local_rank, dataclasses.replace(message, error=mask(message.error))), ()))

    def _take(self, step: tuple[NodeCommands, tuple[Action, ...]]) -> None:
        self._state, actions = step
        for action in actions:
            if isinstance(action, Tell):
                for local_rank in action.ranks:
                    self._context.send(local_rank, line.Order(verb=action.verb, number=action.number))
            else:
                log.warning("the coordinator requested a stop; sending SIGTERM to all workers of this node")
                # For the job, the workers succeed: their agent is done when the last worker has ended.
                self._context.stop_workers()
        self._context.changed()


def create(context: NodeContext) -> Forwarder:
    """Return the node's half."""
    return Forwarder(context)
