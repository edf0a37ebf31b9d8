"""Hang detection on a node: evidence of the workers when the coordinator requests it, and the durations of their phases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rallypoint.agent.waiting import in_background
from rallypoint.capabilities.base import NodeCapability, NodeContext
from rallypoint.capabilities.hang.wire import ReplySection, ReportSection
from rallypoint.wire.hang import Evidence
from rallypoint.wire.messages import Assignment, Continue, WorkerReport

__all__ = ["Observer", "create"]

log = logging.getLogger("rallypoint.node")


class Observer(NodeCapability):
    """The node's half of the capability: it collects evidence for one request at a time."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._round = 0
        self._found: Evidence | None = None
        self._looking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End the collection."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def before_workers(self, assignment: Assignment) -> None:
        """Note the round."""
        self._round = assignment.fence.round

    def urgent(self) -> tuple[int, int] | None:
        """Return round and number of the evidence, None if there is none."""
        return None if self._found is None else (self._found.round, self._found.number)

    def report(self, workers: Sequence[WorkerReport]) -> ReportSection:
        """Return the evidence of this round, and the durations."""
        found = self._found if self._found is not None and self._found.round == self._round else None
        return ReportSection(evidence=found, learned=self._context.learned())

    def on_reply(self, reply: Assignment | Continue, *, waiting: bool) -> None:
        """Begin to collect what is requested; evidence that is no longer requested is no longer reported."""
        number = ReplySection.of(reply).evidence if isinstance(reply, Continue) else 0
        if number == 0:
            self._found = None
        elif (self._looking is None or self._looking.done()) and self.urgent() != (self._round, number):
            self._looking = in_background(self._look(number), log, "collecting stacks of the workers")

    async def _look(self, number: int) -> None:
        found = self._found = await self._context.evidence(number)
        log.debug(
            "round %d: the agent collected the stacks of all workers of this node to analyse a hang: file=%s",
            found.round,
            found.path or "none",
        )
        self._context.changed()


def create(context: NodeContext) -> Observer:
    """Return the node's half."""
    return Observer(context)
