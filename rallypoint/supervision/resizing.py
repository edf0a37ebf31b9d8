"""A job that grows and shrinks while it runs: which of its slots are wanted, and who cannot be resized. Pure.

The record holds the bounds that are wanted (`JobRecord.size`), and every rule that asks for `min_nodes` and `max_nodes` gets
those. A job grows by slots that were not there: their nodes are made like any that is missing, and join the world in its next
round. It shrinks by its highest slots: their nodes are asked to end, within the forceful deletion grace, and the others regroup
without them. No other node is touched, and it costs nothing.

A slot that is wanted no more is remembered as long as its attempt lasts: what comes back into it is its next incarnation.
"""

from __future__ import annotations

import dataclasses

from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord, Phase, Slot
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Kind, Plan, Profile

__all__ = ["fit", "refusal", "size_of", "sized"]

_MADE = (Phase.RESUMING, Phase.RUNNING)


def size_of(record: JobRecord, plan: Plan) -> Size:
    """Return the bounds that hold for a job now."""
    return record.size or Size(min_nodes=plan.min_nodes, max_nodes=plan.max_nodes)


def sized(plan: Plan, record: JobRecord) -> Plan:
    """Return the plan with the bounds that hold now, for those who show it."""
    size = record.size
    return plan if size is None else dataclasses.replace(plan, min_nodes=size.min_nodes, max_nodes=size.max_nodes)


def refusal(plan: Plan, size: Size) -> str:
    """Return why a job cannot have these bounds: the field, the value and what is allowed; "" when it can."""
    if plan.kind is not Kind.PODS:
        return (
            f"kind: {plan.kind.value!r} cannot be resized; expected 'pods' (another controller creates the nodes of this job)"
        )
    if plan.profile is not Profile.LADDER:
        return (
            f"profile: {plan.profile.value!r} cannot be resized; expected 'ladder' (a job with this profile has a fixed "
            "number of nodes)"
        )
    if not 1 <= size.min_nodes <= size.max_nodes:
        return f"nodes: '{size}' is not allowed; expected N or MIN:MAX with 1 <= MIN <= MAX"
    if size.max_nodes // plan.node_unit * plan.node_unit < size.min_nodes:
        return f"nodes: '{size}' is not allowed; expected a range that includes a multiple of node_unit ({plan.node_unit})"
    return ""


def fit(record: JobRecord, policy: Policy) -> JobRecord:
    """Return the record of a job with the slots that are wanted; the very same one where they are there."""
    if record.phase not in _MADE or policy.wrapped or len(record.slots) == policy.max_nodes:
        return record
    before, retired = len(record.slots), {slot.node: slot for slot in record.retired}
    kept = tuple(slot for slot in record.slots if slot.node < policy.max_nodes)
    leaving = {slot.node: slot for slot in record.slots if slot.node >= policy.max_nodes}
    for node, slot in leaving.items():
        retired[node] = dataclasses.replace(slot, pending_clock=None, lost_clock=None, wanted_clock=record.clock)
    fresh = tuple(_again(node, retired.pop(node, None), record.clock) for node in range(before, policy.max_nodes))
    record = dataclasses.replace(record, slots=(*kept, *fresh), retired=tuple(retired[node] for node in sorted(retired)))
    return record.with_history("resized", f"{policy.max_nodes} nodes requested (at least {policy.min_nodes}); before: {before}")


def _again(node: int, before: Slot | None, clock: float) -> Slot:
    """Return a slot that is wanted now; one that was there before waits until its last node is gone."""
    return Slot(node=node) if before is None else Slot(node=node, incarnation=before.incarnation + 1, wanted_clock=clock)
