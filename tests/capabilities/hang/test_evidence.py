"""The node's half of hang detection: stacks are collected once for each request of the coordinator."""

from __future__ import annotations

import asyncio

from rallypoint.capabilities.hang.node import Observer
from rallypoint.wire.fence import Fence
from rallypoint.wire.hang import Evidence
from rallypoint.wire.messages import Assignment, Continue
from rallypoint.wire.sections import replaced
from tests.capabilities.context import node_context

FENCE = Fence(attempt=1, term=1, round=4)
ASSIGNED = Assignment(
    fence=FENCE,
    node=0,
    group_rank=0,
    group_world_size=1,
    first_rank=0,
    world_size=1,
    store="127.0.0.1:1",
    restart_count=0,
    max_restarts=3,
    digest="d",
)


class Node:
    """An agent whose workers can be looked into at once."""

    def __init__(self) -> None:
        self.collected: list[int] = []
        self.changed = 0
        self.observer = Observer(node_context(changed=self._change, evidence=self._collect))

    def _change(self) -> None:
        self.changed += 1

    async def _collect(self, number: int) -> Evidence:
        self.collected.append(number)
        return Evidence(round=FENCE.round, number=number)

    async def receive(self, number: int) -> Evidence | None:
        """Receive a request of the coordinator, 0 for none, and return the evidence of the next report."""
        reply = replaced(Continue(fence=FENCE), evidence=number)
        self.observer.on_reply(reply, waiting=False)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.observer.report(()).evidence


async def test_evidence_is_collected_once_for_each_request() -> None:
    """The coordinator repeats a request until it has the evidence; a new number is a new request."""
    node = Node()
    await node.observer.before_workers(ASSIGNED)

    seen = [await node.receive(number) for number in (0, 1, 1, 2, 0)]

    assert [None if found is None else found.number for found in seen] == [None, 1, 1, 2, None]
    assert (node.collected, node.changed) == ([1, 2], 2)
    await node.observer.close()


async def test_evidence_of_an_earlier_round_is_not_reported() -> None:
    """Its ranks are those of other workers."""
    node = Node()
    await node.observer.before_workers(ASSIGNED)
    assert await node.receive(1) is not None

    await node.observer.before_workers(
        Assignment(**{**vars(ASSIGNED), "fence": Fence(attempt=1, term=1, round=FENCE.round + 1)})
    )

    assert node.observer.report(()).evidence is None
