"""Counting what is there: one pass over the nodes that were seen, for every check that follows. Pure."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from dataclasses import dataclass

from rallypoint.supervision.observation import NodeSeen, NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord, Slot
from rallypoint.wire.incident import FaultKind

__all__ = ["Census", "exit_codes", "take"]


@dataclass(frozen=True, kw_only=True)
class Census:
    """The nodes of the current attempt, counted as AppWrapper counts pods.

    Attributes:
        slots: of the record, with what was seen of them now; the very tuple of the record where nothing changed.
        pending: they exist and do not run yet, those that are being deleted included.
        running: they run and are not being deleted.
        succeeded, failed: they have ended; `failed` includes those that are gone without a trace.
        gated: they wait for quota (counted in `pending`, too).
        lost: slots whose node is gone and not replaced yet.
        missing: slots whose wanted node was never created.
        ended: wanted nodes that have ended now, however; their slots are not `lost` yet.
        flagged: nodes that run on a host that was flagged as bad.
        outdated: nodes that must be created anew before they have a host.
        oldest_pending: since when (job's clock) the node that waits longest is pending; None where none does.
        tidy: every node that was seen is wanted and has not ended: there is no stray among them.
    """

    slots: tuple[Slot, ...] = ()
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    gated: int = 0
    lost: int = 0
    missing: tuple[Slot, ...] = ()
    ended: tuple[NodeSeen, ...] = ()
    flagged: tuple[NodeSeen, ...] = ()
    outdated: tuple[NodeSeen, ...] = ()
    oldest_pending: float | None = None
    tidy: bool = False

    @property
    def existing(self) -> int:
        """Pods that exist and have not failed: what admission waits for."""
        return self.pending + self.running + self.succeeded


class _Counter:
    def __init__(self) -> None:
        self.pending = self.running = self.succeeded = self.failed = self.gated = self.lost = 0
        self.missing: list[Slot] = []
        self.ended: list[NodeSeen] = []
        self.flagged: list[NodeSeen] = []
        self.outdated: list[NodeSeen] = []
        self.waiting: list[float] = []
        self.ours = 0

    def count(self, node: NodeSeen) -> None:
        state = node.state
        if state is NodeState.STARTING:
            self.pending += 1
            self.gated += node.gated
            if node.outdated and not node.deleting:
                self.outdated.append(node)
        elif state is NodeState.RUNNING and not node.deleting:
            self.running += 1
            if node.flagged:
                self.flagged.append(node)
        elif state is NodeState.SUCCEEDED:
            self.succeeded += 1
            self.ended.append(node)
        elif node.ended:
            self.failed += 1
            self.ended.append(node)

    def census(self, slots: tuple[Slot, ...], nodes: int) -> Census:
        return Census(
            tidy=self.ours == nodes and not self.ended,
            slots=slots,
            pending=self.pending,
            running=self.running,
            succeeded=self.succeeded,
            failed=self.failed,
            gated=self.gated,
            lost=self.lost,
            missing=tuple(self.missing),
            ended=tuple(self.ended),
            flagged=tuple(self.flagged),
            outdated=tuple(self.outdated),
            oldest_pending=min(self.waiting, default=None),
        )


def take(record: JobRecord, seen: Observation, policy: Policy) -> Census:
    """Count the nodes of the current attempt; those of wrapped components count whatever their names are."""
    if policy.wrapped:
        return _of_components(record, seen.nodes)
    counter = _Counter()
    here = {(n.node, n.incarnation): n for n in seen.nodes if n.attempt == record.attempt}
    slots, running = list(record.slots), 0
    for place, slot in enumerate(record.slots):
        node = here.get((slot.node, slot.incarnation))
        # Nearly every node of nearly every turn runs on as it did: a thousand of them should cost next to nothing.
        if (
            node is not None
            and node.state is NodeState.RUNNING
            and slot.seen
            and slot.pending_clock is slot.lost_clock is None
            and not (node.deleting or node.flagged)
            and node.group in ("", slot.group)
        ):
            running += 1
        else:
            slots[place] = looked = _look(slot, node, record, counter)
            if looked.pending_clock is not None:
                counter.waiting.append(looked.pending_clock)
    counter.running += running
    counter.ours += running
    if all(map(operator.is_, slots, record.slots)):
        return counter.census(record.slots, len(seen.nodes))
    return counter.census(tuple(slots), len(seen.nodes))


def _of_components(record: JobRecord, nodes: Iterable[NodeSeen]) -> Census:
    counter = _Counter()
    for node in nodes:
        # A pod that is gone is not there: its controller makes another, and until then there are fewer.
        if node.attempt == record.attempt and node.state is not NodeState.LOST:
            counter.count(node)
    return counter.census((), len(tuple(nodes)))


def _look(slot: Slot, node: NodeSeen | None, record: JobRecord, counter: _Counter) -> Slot:
    """Count one slot's node; return the slot with what was seen of it."""
    if slot.lost_clock is not None:
        if node is None or node.ended:
            counter.lost += 1
            return slot
        slot = dataclasses.replace(slot, lost_clock=None)  # a host that was out of reach is back, and the node with it
    if node is None:
        if not slot.seen:
            counter.missing.append(slot)
            return slot
        node = _vanished(slot, record)
    else:
        counter.ours += 1
    counter.count(node)
    waits = node.state is NodeState.STARTING and not node.gated
    pending_clock = (record.clock if slot.pending_clock is None else slot.pending_clock) if waits else None
    group = node.group or slot.group
    if slot.seen and slot.pending_clock == pending_clock and slot.group == group:
        return slot
    return dataclasses.replace(slot, seen=True, pending_clock=pending_clock, group=group)


def _vanished(slot: Slot, record: JobRecord) -> NodeSeen:
    return NodeSeen(
        attempt=record.attempt,
        node=slot.node,
        incarnation=slot.incarnation,
        state=NodeState.LOST,
        present=False,
        kind=FaultKind.DELETED,
        reason="it was deleted by another client",
    )


def exit_codes(node: NodeSeen) -> tuple[int, ...]:
    """Return the codes of all that ended in a node, as far as they are known."""
    if node.exit_codes or node.exit_code is None:
        return node.exit_codes
    return (node.exit_code,)
