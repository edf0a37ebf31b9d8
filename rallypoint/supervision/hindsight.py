"""What a record remembers of the world, for those who have nothing but the record. Pure.

It is what the last turn saw, as far as the record tells: enough to say which clocks run and what comes next, and never a reason
to act.
"""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.supervision.observation import Components, NodeSeen, NodeState, Observation, Told
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.fence import Fence
from rallypoint.wire.status import JobState, JobStatus, Member

__all__ = ["remembered"]


def remembered(record: JobRecord, policy: Policy) -> Observation:
    """Return an observation in which everything is as the record saw it last."""
    if policy.followed:
        return Observation(told=_told(record))
    deployed = record.condition(ConditionType.RESOURCES_DEPLOYED)
    components = Components(deployed=1 if deployed or not policy.wrapped else 0)
    if not deployed:
        return Observation(components=components, suspend=_without_quota(record))
    nodes = tuple(_pods(record, policy) if policy.wrapped else _nodes(record))
    coordinator = _seen(record, -1, record.term, NodeState.RUNNING)
    return Observation(
        nodes=nodes,
        coordinators=() if policy.wrapped else (coordinator,),
        status=_status(record, nodes),
        components=components,
        suspend=_without_quota(record),
    )


def _told(record: JobRecord) -> Told:
    first = record.attempt + 1 if record.phase is Phase.EMPTY else max(record.attempt, 1)
    return Told(
        phase=record.phase,
        conditions=record.conditions,
        retries=record.retries,
        first_attempt=first,
        suspended=record.suspend,
        by_us=record.suspend,
        deleting=record.deletion,
    )


def _nodes(record: JobRecord) -> Iterator[NodeSeen]:
    for slot in record.slots:
        if slot.seen and slot.lost_clock is None:
            state = NodeState.RUNNING if slot.pending_clock is None else NodeState.STARTING
            yield _seen(record, slot.node, slot.incarnation, state)


def _pods(record: JobRecord, policy: Policy) -> Iterator[NodeSeen]:
    # The pods of a component have no slots: that one has failed, or that they run, is told by the conditions alone.
    running = record.condition(ConditionType.PODS_READY)
    unhealthy = record.find(ConditionType.UNHEALTHY)
    failed = unhealthy is not None and unhealthy.value and unhealthy.reason == "FoundFailedPods"
    for node in range(policy.max_nodes):
        state = NodeState.FAILED if failed and node == 0 else NodeState.RUNNING if running else NodeState.STARTING
        yield _seen(record, node, 1, state)


def _seen(record: JobRecord, node: int, incarnation: int, state: NodeState) -> NodeSeen:
    return NodeSeen(attempt=record.attempt, node=node, incarnation=incarnation, state=state, present=True)


def _status(record: JobRecord, nodes: tuple[NodeSeen, ...]) -> JobStatus | None:
    if not record.condition(ConditionType.PODS_READY):
        return None
    world = tuple(
        Member(node=n.node, incarnation=n.incarnation, agent="", host=n.host, local_world_size=1)
        for n in nodes
        if n.state is NodeState.RUNNING
    )
    return JobStatus(
        job=record.name,
        uid=record.uid,
        fence=Fence(attempt=record.attempt, term=record.term, round=1),
        state=JobState.RUNNING,
        world=world,
        progress=record.progress,
    )


def _without_quota(record: JobRecord) -> bool:
    """A job that is suspended against its owner's wish waits for its queue."""
    return record.phase.value == "Suspended" and not record.suspend
