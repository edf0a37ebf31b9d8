"""Which nodes of a running attempt are missing, lost, replaceable or strays. Pure, like `reconcile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from rallypoint.supervision.actions import Action, RemoveNode
from rallypoint.supervision.census import Census
from rallypoint.supervision.charges import after_fault, node_budget
from rallypoint.supervision.clocks import Deadline
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation, how_it_ended
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord, Slot
from rallypoint.supervision.verdicts import judge, node_end
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import (
    FREE,
    Answer,
    Cause,
    Culprit,
    FaultKind,
    Folded,
    Incident,
    IncidentId,
    Rung,
    merge_incidents,
)
from rallypoint.wire.status import JobState, JobStatus

__all__ = [
    "describe_lost",
    "evacuate",
    "fenced_until",
    "hopeless",
    "irreplaceable",
    "leave_groups",
    "missing_nodes",
    "next_replacement",
    "node_incident",
    "note_healed",
    "note_lost_nodes",
    "note_uncreatable",
    "replace_lost_nodes",
    "replace_nodes",
    "strays",
]


def missing_nodes(record: JobRecord, seen: Observation) -> tuple[Slot, ...]:
    """Return the slots whose wanted incarnation was not created yet."""
    created = {(n.node, n.incarnation) for n in seen.nodes if n.attempt == record.attempt}
    return tuple(s for s in record.slots if s.lost_clock is None and (s.node, s.incarnation) not in created)


def note_lost_nodes(record: JobRecord, census: Census, policy: Policy) -> JobRecord:
    """Remember each wanted node that has ended before the job did, as an incident with an id and a verdict of its own."""
    ended = {n.node: n for n in census.ended if n.state is not NodeState.SUCCEEDED}
    if not ended:
        return record
    known = {i.id: i for i in record.incidents if i.id.node in ended and i.id.attempt == record.attempt}
    fresh = tuple(node_incident(record, node, policy, known.get(_id(node))) for node in ended.values())
    slots = tuple(_lost(s, ended[s.node], record) if s.node in ended else s for s in record.slots)
    record = dataclasses.replace(record, slots=slots, incidents=merge_incidents(record.incidents, fresh))
    if any(incident.cause not in FREE for incident in fresh):
        record = after_fault(record)
    return record.with_history("node-lost", *(incident.reason for incident in fresh))


def _lost(slot: Slot, node: NodeSeen, record: JobRecord) -> Slot:
    unseen = node.incarnation if node.unseen else slot.unseen
    return dataclasses.replace(slot, lost_clock=record.clock, unseen=unseen)


def _id(node: NodeSeen) -> IncidentId:
    # The coordinator tells the same fault with the same id; the two are joined.
    return IncidentId(attempt=node.attempt, round=0, node=node.node, sequence=node.incarnation)


def node_incident(record: JobRecord, node: NodeSeen, policy: Policy, known: Incident | None) -> Incident:
    """Return what a node's end was, with its verdict; `known` is what was told of it before."""
    judged = judge(
        node_end(node, agent=not policy.wrapped),
        rules=policy.end_rules,
        terminal=policy.terminal_exit_codes,
        retryable=policy.retryable_exit_codes,
    )
    fenced = not policy.wrapped and node.exit_code == Exit.LOST_CONTACT
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
        id=_id(node),
        cause=judged.cause,  # where it was free (preempted, say), it is: the coordinator could only see that it was gone
        rung=Rung.RECOVER,
        reason=f"node {node.node} on {node.host or 'an unknown host'} {how_it_ended(node)}",
        culprit=culprit,
        detected_at=record.last_now,
        kind=judged.kind,
        # What the coordinator has judged already stands: it has seen it from inside. Not so of an agent that reached no
        # coordinator: to the coordinator its machine was silent, and the agent's exit code says that it was not broken.
        answer=judged.answer if known is None or fenced else known.answer or judged.answer,
        rule=judged.rule,
        clock=record.clock,
    )


def hopeless(record: JobRecord) -> tuple[str, str] | None:
    """Return reason and message when a lost node's verdict allows no retry, or None.

    What cannot even start for the first time (image, interpreter, volume) would not start the next time either.
    """
    lost = {(s.node, s.incarnation) for s in record.slots if s.lost_clock is not None}
    if not lost:
        return None
    never_ran = record.attempts[-1].ready_at is None and record.attempt == record.attempts[0].number
    for incident in record.incidents:
        if incident.id.attempt != record.attempt or (incident.id.node, incident.id.sequence) not in lost:
            continue
        if incident.answer is Answer.FAIL_NOW:
            return "FailNow", f"{incident.reason}; {incident.rule}"
        if never_ran and incident.kind is FaultKind.START_FAILED and incident.id.sequence == 1:
            return "StartFailed", incident.reason
    return None


def note_uncreatable(record: JobRecord, seen: Observation) -> JobRecord:
    """A replacement that can never be created is one more fault of its slot, and not the end of a job that runs."""
    fatal = {e.node: e for e in seen.create_errors if e.fatal and e.attempt == record.attempt and e.node >= 0}
    if not fatal:
        return record
    waiting = [s for s in record.slots if s.node in fatal and s.lost_clock is None and not s.seen]
    for slot in waiting:
        incident = Incident(
            id=IncidentId(attempt=record.attempt, round=0, node=slot.node, sequence=slot.incarnation),
            cause=Cause.NODE,
            rung=Rung.RECOVER,
            reason=f"cannot create node {slot.node}: {fatal[slot.node].reason}",
            detected_at=record.last_now,
            kind=FaultKind.START_FAILED,
            clock=record.clock,
        )
        record = record.with_slot(dataclasses.replace(slot, lost_clock=record.clock))
        record = dataclasses.replace(record, incidents=merge_incidents(record.incidents, (incident,)))
        record = record.with_history("node-lost", incident.reason)
    return record


def evacuate(record: JobRecord, flagged: Iterable[NodeSeen]) -> JobRecord:
    """Want another incarnation of each node whose host was flagged, or that must be created anew before it has a host.

    It costs nothing, and the old one is ended in peace.
    """
    slots = {slot.node: slot for slot in record.slots}
    for node in flagged:
        why = f"leaves {node.host or 'its host'}, which is flagged as bad: {node.flagged}" if node.flagged else node.outdated
        incident = Incident(
            id=_id(node),
            cause=Cause.EVACUATION,
            rung=Rung.RECOVER,
            reason=f"node {node.node} {why}",
            detected_at=record.last_now,
            kind=FaultKind.FLAGGED,
            clock=record.clock,
        )
        record = dataclasses.replace(record, incidents=merge_incidents(record.incidents, (incident,)))
        slot = dataclasses.replace(slots.get(node.node, Slot(node=node.node)), incarnation=node.incarnation)
        record = record.with_slot(_next(slot, record.clock)).with_history("node-evacuated", incident.reason)
    return record


def _next(slot: Slot, clock: float) -> Slot:
    """Return a slot that wants its next incarnation."""
    return Slot(node=slot.node, incarnation=slot.incarnation + 1, wanted_clock=clock, unseen=slot.unseen, group=slot.group)


def leave_groups(record: JobRecord, policy: Policy) -> tuple[JobRecord, Deadline | None]:
    """Want another incarnation of each node in a group of machines in which a replacement was pending for too long.

    Each group is left once in an attempt, and it costs nothing. Also return when the next group is left.
    """
    waiting = [(since + policy.node_group_timeout, slot) for since, slot in _pending_replacements(record)]
    for at, slot in waiting:
        if record.clock >= at and slot.group not in record.left_groups:
            record = _leave(record, slot, policy)
    later = [(at, slot.node, slot.group) for at, slot in waiting if slot.group not in record.left_groups]
    if not later:
        return record, None
    at, node, group = min(later)
    then = f"all nodes on machines with {policy.node_group}={group} are replaced, because node {node} is pending"
    return record, Deadline(at=at, clock="node-group", then=then)


def _pending_replacements(record: JobRecord) -> Iterator[tuple[float, Slot]]:
    """Yield the replacements on machines of a group that wait, and since when."""
    for slot in record.slots:
        if slot.incarnation > 1 and slot.pending_clock is not None and slot.group:
            yield slot.pending_clock, slot


def _leave(record: JobRecord, pending: Slot, policy: Policy) -> JobRecord:
    members = [slot for slot in record.slots if slot.group == pending.group and slot.lost_clock is None]
    where = f"the machines with {policy.node_group}={pending.group}"
    why = f"because the replacement of node {pending.node} was pending for {policy.node_group_timeout:g} s"
    incidents = tuple(
        Incident(
            id=IncidentId(attempt=record.attempt, round=0, node=slot.node, sequence=slot.incarnation),
            cause=Cause.EVACUATION,
            rung=Rung.RECOVER,
            reason=f"node {slot.node} leaves {where}, {why}",
            detected_at=record.last_now,
            clock=record.clock,
        )
        for slot in members
    )
    record = dataclasses.replace(
        record,
        left_groups=(*record.left_groups, pending.group),
        incidents=merge_incidents(record.incidents, incidents),
    )
    record = record.with_slot(*(_next(slot, record.clock) for slot in members))
    return record.with_history("node-evacuated", *(incident.reason for incident in incidents))


def _replaceable(record: JobRecord, policy: Policy) -> tuple[Slot, ...]:
    """Return the lost slots whose budget allows another node."""
    lost = tuple(s for s in record.slots if s.lost_clock is not None)
    if not lost:
        return ()
    by_node: dict[int, list[Incident]] = {s.node: [] for s in lost}
    for incident in record.incidents:
        if incident.id.node in by_node and incident.id.attempt == record.attempt:
            by_node[incident.id.node].append(incident)

    counts: dict[int, list[Folded]] = {s.node: [] for s in lost}
    for folded in record.folded:
        if folded.node in counts and folded.attempt == record.attempt:
            counts[folded.node].append(folded)

    def allowed(slot: Slot) -> bool:
        budget, node = node_budget(policy, slot.node), slot.node
        return not budget.exceeded(by_node[node], record.attempt, folded=counts[node], clock=record.clock)

    return tuple(s for s in lost if allowed(s))


def replace_lost_nodes(record: JobRecord, policy: Policy) -> JobRecord:
    """Want the next incarnation of each lost node whose budget allows it and whose pause is over."""
    lost = ((s, s.lost_clock) for s in _replaceable(record, policy))
    return replace_nodes(record, [s for s, at in lost if at is not None and record.clock >= at + policy.replace_delay])


def replace_nodes(record: JobRecord, slots: Sequence[Slot]) -> JobRecord:
    """Want the next incarnation of each of these slots' nodes."""
    if not slots:
        return record
    fresh = [_next(slot, record.clock) for slot in slots]
    details = (f"node {s.node}, incarnation {s.incarnation}" for s in fresh)
    return record.with_slot(*fresh).with_history("node-replaced", *details)


def note_healed(record: JobRecord, status: JobStatus | None) -> JobRecord:
    """Mark the loss of a node healed once its replacement trains, and that of a coordinator once the next one speaks."""
    open_ = [i for i in record.incidents if i.healed_at is None and i.id.attempt == record.attempt]
    if status is None or not open_:
        return record
    trains = {m.node: m.incarnation for m in status.world} if status.state is JobState.RUNNING else {}
    wanted = {s.node: s.incarnation for s in record.slots}

    def is_healed(incident: Incident) -> bool:
        if incident.cause is Cause.COORDINATOR:
            return status.fence.term > incident.id.sequence
        if incident.id.node < 0 or incident.id.round != 0:
            return False
        incarnation = wanted.get(incident.id.node, 0)
        return incarnation > incident.id.sequence and trains.get(incident.id.node) == incarnation

    healed = tuple(dataclasses.replace(i, healed_at=record.last_now) for i in open_ if is_healed(i))
    return dataclasses.replace(record, incidents=merge_incidents(record.incidents, healed)) if healed else record


def fenced_until(record: JobRecord, status: JobStatus | None, policy: Policy) -> Deadline | None:
    """Return when a world without members of the last one may start, if their end was not observed; else None."""
    unseen = {(s.node, s.unseen) for s in record.slots if s.unseen}
    if not unseen or status is None or status.state is not JobState.FORMING or not status.world:
        return None
    if any((member.node, member.incarnation) not in unseen for member in status.world):
        return None
    lost = [i.clock for i in record.incidents if i.id.attempt == record.attempt and (i.id.node, i.id.sequence) in unseen]
    at = max(lost, default=record.clock) + policy.fence
    then = "a new round may start, because the agents on the lost machines have stopped their workers by then"
    return Deadline(at=at, clock="fence-timeout", then=then) if record.clock < at else None


def irreplaceable(record: JobRecord, policy: Policy) -> tuple[Slot, ...]:
    """Return the slots that are lost and whose budget is spent."""
    allowed = {s.node for s in _replaceable(record, policy)}
    return tuple(s for s in record.slots if s.lost_clock is not None and s.node not in allowed)


def next_replacement(record: JobRecord, policy: Policy) -> Deadline | None:
    """Return when the next lost node may be replaced."""
    lost = [(s.lost_clock, s.node) for s in _replaceable(record, policy) if s.lost_clock is not None]
    if not lost:
        return None
    at, node = min(lost)
    return Deadline(at=at + policy.replace_delay, clock="replace-delay", then=f"node {node} is replaced")


def describe_lost(record: JobRecord, slots: tuple[Slot, ...]) -> str:
    """Return one sentence about how the nodes of `slots` were lost last."""
    last = {
        i.id.node: i.reason for i in record.incidents if i.id.round == 0 and i.id.node >= 0 and i.id.attempt == record.attempt
    }
    return "; ".join(last[slot.node] for slot in slots if slot.node in last)


def strays(record: JobRecord, seen: Observation, forceful_grace: float) -> tuple[Action, ...]:
    """Return the removal of nodes that no longer belong: other attempts, replaced ones, what a lost node left running.

    A node that was replaced while it ran, or is wanted no more, is ended gracefully, within `forceful_grace` seconds of that.
    """
    slots = {s.node: s for s in record.slots}
    known = {**{s.node: s for s in record.retired}, **slots}

    def stray(node: NodeSeen) -> bool:
        slot = slots.get(node.node)
        wanted = slot is not None and slot.lost_clock is None
        return node.ended or not wanted or (node.attempt, node.incarnation) != (record.attempt, slot and slot.incarnation)

    def force(node: NodeSeen) -> bool:
        slot = known.get(node.node)
        if node.ended or slot is None or node.attempt != record.attempt or slot.wanted_clock is None:
            return True
        return record.clock > slot.wanted_clock + forceful_grace

    return tuple(
        RemoveNode(attempt=n.attempt, node=n.node, incarnation=n.incarnation, force=force(n))
        for n in seen.nodes
        if n.present and stray(n)
    )
