"""Which nodes and coordinators of a running attempt are missing, lost, replaceable or strays. Pure, like `reconcile`."""

from __future__ import annotations

import dataclasses

from rallypoint.supervision.actions import Action, RemoveCoordinator, RemoveNode
from rallypoint.supervision.budget import Budget
from rallypoint.supervision.observation import NodeSeen, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord, Slot
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.status import JobState, JobStatus

__all__ = [
    "COORDINATOR_LIMIT",
    "SILENT_TERMS",
    "coordinator_exists",
    "coordinators_lost",
    "describe_lost",
    "irreplaceable",
    "missing_nodes",
    "next_replacement",
    "note_healed",
    "note_lost_nodes",
    "replace_coordinator",
    "replace_lost_nodes",
    "strays",
]

#: Coordinators that end before they speak, in a row, until the attempt is given up: the next one would end alike.
SILENT_TERMS = 3


#: Coordinators that may be lost within one attempt. They cost no budget, but something that kills each of them will not stop.
COORDINATOR_LIMIT = 100


def coordinators_lost(record: JobRecord) -> int:
    """Return how many coordinators of the current attempt have ended."""
    return Budget(cause=Cause.COORDINATOR, limit=COORDINATOR_LIMIT).spent(record.incidents, record.attempt)


def missing_nodes(record: JobRecord, seen: Observation) -> tuple[Slot, ...]:
    """Return the slots whose wanted incarnation was not created yet."""
    created = {(n.node, n.incarnation) for n in seen.nodes if n.attempt == record.attempt}
    return tuple(s for s in record.slots if s.lost_clock is None and (s.node, s.incarnation) not in created)


def coordinator_exists(record: JobRecord, seen: Observation) -> bool:
    """Return whether the coordinator of the current term was created."""
    return _coordinator(record, seen) is not None


def _coordinator(record: JobRecord, seen: Observation) -> NodeSeen | None:
    return next((c for c in seen.coordinators if (c.attempt, c.incarnation) == (record.attempt, record.term)), None)


def replace_coordinator(record: JobRecord, seen: Observation, status: JobStatus | None) -> tuple[JobRecord, str | None]:
    """Grant the next term when the coordinator of this one has ended; return how it ended, or None while it lives."""
    ended = _coordinator(record, seen)
    if ended is None or not ended.ended:
        return record, None
    spoke = status is not None and status.fence.term >= record.term
    reason = _how_it_ended(ended)
    incident = Incident(
        id=IncidentId(attempt=record.attempt, round=0, sequence=record.term),
        cause=Cause.COORDINATOR,
        rung=Rung.RECOVER,
        reason=f"the coordinator of term {record.term} {reason}",
        detected_at=record.last_now,
    )
    record = dataclasses.replace(
        record,
        incidents=merge_incidents(record.incidents, (incident,)),
        term=record.term + 1,
        silent_terms=0 if spoke else record.silent_terms + 1,
    )
    return record.with_history("coordinator-lost", f"{incident.reason}; term {record.term} takes over"), reason


def note_lost_nodes(record: JobRecord, seen: Observation) -> JobRecord:
    """Remember each wanted node that has ended before the job did, as an incident with an id of its own."""
    for node in seen.nodes:
        slot = next((s for s in record.slots if s.node == node.node), None)
        current = slot is not None and (node.attempt, node.incarnation) == (record.attempt, slot.incarnation)
        if slot is None or not current or not node.ended or slot.lost_clock is not None:
            continue
        record = record.with_slot(dataclasses.replace(slot, lost_clock=record.clock))
        incident = _node_incident(record, node)
        record = dataclasses.replace(record, incidents=merge_incidents(record.incidents, (incident,)))
        record = record.with_history("node-lost", incident.reason)
    return record


def _node_incident(record: JobRecord, node: NodeSeen) -> Incident:
    culprit = Culprit(
        node=node.node,
        incarnation=node.incarnation,
        host=node.host,
        exit_code=node.exit_code,
        error=node.reason,
        log_tail=node.log_tail,
        at=record.last_now,
    )
    return Incident(
        # The coordinator tells the same fault with the same id; the two are joined.
        id=IncidentId(attempt=record.attempt, round=0, node=node.node, sequence=node.incarnation),
        cause=Cause.NODE,
        rung=Rung.RECOVER,
        reason=f"node {node.node} on {node.host or 'an unknown host'} {_how_it_ended(node)}",
        culprit=culprit,
        detected_at=record.last_now,
    )


def _how_it_ended(seen: NodeSeen) -> str:
    how = "was lost" if seen.exit_code is None else f"ended with exit code {seen.exit_code}"
    return f"{how}: {seen.reason}" if seen.reason else how


def _replaceable(record: JobRecord, slot: Slot, policy: Policy) -> bool:
    budget = Budget(cause=Cause.NODE, limit=policy.node_replacements, node=slot.node)
    return not budget.exceeded(record.incidents, record.attempt)


def replace_lost_nodes(record: JobRecord, policy: Policy) -> JobRecord:
    """Want the next incarnation of each lost node whose budget allows it and whose pause is over."""
    for slot in record.slots:
        if slot.lost_clock is None or not _replaceable(record, slot, policy):
            continue
        if record.clock >= slot.lost_clock + policy.replace_delay:
            fresh = Slot(node=slot.node, incarnation=slot.incarnation + 1)
            record = record.with_slot(fresh)
            detail = f"node {slot.node}, incarnation {fresh.incarnation}"
            record = record.with_history("node-replaced", detail)
    return record


def note_healed(record: JobRecord, status: JobStatus | None) -> JobRecord:
    """Mark the loss of a node healed once its replacement trains, and that of a coordinator once the next one speaks."""
    if status is None:
        return record
    healed = tuple(
        dataclasses.replace(incident, healed_at=record.last_now)
        for incident in record.incidents
        if incident.healed_at is None and incident.id.attempt == record.attempt and _is_healed(incident, record, status)
    )
    return dataclasses.replace(record, incidents=merge_incidents(record.incidents, healed)) if healed else record


def _is_healed(incident: Incident, record: JobRecord, status: JobStatus) -> bool:
    if incident.cause is Cause.COORDINATOR:
        return status.fence.term > incident.id.sequence
    if incident.cause is not Cause.NODE or status.state is not JobState.RUNNING:
        return False
    slot = next((s for s in record.slots if s.node == incident.id.node), None)
    if slot is None or slot.incarnation <= incident.id.sequence:
        return False
    return any((m.node, m.incarnation) == (slot.node, slot.incarnation) for m in status.world)


def irreplaceable(record: JobRecord, policy: Policy) -> tuple[Slot, ...]:
    """Return the slots that are lost and whose budget is spent."""
    return tuple(s for s in record.slots if s.lost_clock is not None and not _replaceable(record, s, policy))


def next_replacement(record: JobRecord, policy: Policy) -> float | None:
    """Return the job's clock at which the next lost node may be replaced."""
    lost = (s for s in record.slots if s.lost_clock is not None and _replaceable(record, s, policy))
    return min((s.lost_clock + policy.replace_delay for s in lost if s.lost_clock is not None), default=None)


def describe_lost(record: JobRecord, slots: tuple[Slot, ...]) -> str:
    """Return one sentence about how the nodes of `slots` were lost last."""
    last = {i.id.node: i.reason for i in record.incidents if i.cause is Cause.NODE and i.id.attempt == record.attempt}
    return "; ".join(last[slot.node] for slot in slots if slot.node in last)


def strays(record: JobRecord, seen: Observation) -> tuple[Action, ...]:
    """Return the removal of what no longer belongs: other attempts, replaced nodes, what a lost node left running."""
    wanted = {(record.attempt, s.node, s.incarnation) for s in record.slots if s.lost_clock is None}
    nodes = tuple(
        RemoveNode(attempt=n.attempt, node=n.node, incarnation=n.incarnation, force=True)
        for n in seen.nodes
        if n.present and (n.ended or (n.attempt, n.node, n.incarnation) not in wanted)
    )
    coordinators = tuple(
        RemoveCoordinator(attempt=c.attempt, term=c.incarnation, force=True)
        for c in seen.coordinators
        if c.present and (c.ended or (c.attempt, c.incarnation) != (record.attempt, record.term))
    )
    return (*nodes, *coordinators)
