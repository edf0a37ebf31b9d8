"""Judging a job's rendezvous: whether enough of it trains, and who is missing. Pure."""

from __future__ import annotations

from typing import Any

from rallypoint.provider.sensing.conditions import RendezvousCondition
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.seen import Memory, Seen, job_values, not_yet
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["judge"]


def judge(
    asked: RendezvousCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory
) -> tuple[Finding, Memory]:
    """Look at the world of the last closed round."""
    if asked.missing_for is None:
        return _complete(asked, record, status, seen, memory)
    return _missing(asked, record, status, seen, memory, asked.missing_for)


def _complete(
    asked: RendezvousCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory
) -> tuple[Finding, Memory]:
    values = job_values(record, status)
    there = _trains(status) and _enough(asked, status, asked.min_nodes or 1)
    memory = memory.marked(_world(status) if there else "", seen)
    if there and memory.spent >= asked.stable_for:
        text = f"job {record.name}: {_round(values)}" + (f" for {memory.spent:.0f} s" if asked.stable_for else "")
        return Finding(found=Found.MET, text=text, values=values), memory
    wake = asked.stable_for - memory.spent if there else None
    so_far = f"job {record.name}: {_round(values)}, for {memory.spent:.0f} s so far" if there else ""
    return not_yet(_wanted(asked), record, values, wake=wake, so_far=so_far), memory


def _missing(
    asked: RendezvousCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory, limit: float
) -> tuple[Finding, Memory]:
    wanted = asked.min_nodes or seen.max_nodes or 1
    begun = record.phase is Phase.RUNNING and status is not None and status.fence.round >= 1
    short = begun and not (_trains(status) and _enough(asked, status, wanted))
    memory = memory.marked("short" if short else "", seen)
    values = {**job_values(record, status), "missing": _absent(record, status) if short else []}
    if short and memory.spent >= limit:
        text = f"job {record.name}: {_round(values)}, of {wanted} nodes, for {memory.spent:.0f} s{_named(values['missing'])}"
        return Finding(found=Found.MET, text=text, values=values), memory
    wake = limit - memory.spent if short else None
    return not_yet("a round with members missing", record, values, wake=wake), memory


def _enough(asked: RendezvousCondition, status: JobStatus | None, nodes: int) -> bool:
    return status is not None and len(status.world) >= nodes and status.world_size >= asked.min_world_size


def _wanted(asked: RendezvousCondition) -> str:
    ranks = f" and {asked.min_world_size} ranks" if asked.min_world_size else ""
    steady = f" that is stable for {asked.stable_for:g} s" if asked.stable_for else ""
    return f"a round of at least {asked.min_nodes or 1} nodes{ranks}{steady}"


def _trains(status: JobStatus | None) -> bool:
    return status is not None and status.state is JobState.RUNNING


def _world(status: JobStatus | None) -> str:
    """Name a world: its round, and who is in it; a new coordinator of the same round is the same world."""
    if status is None:
        return ""
    members = ",".join(f"{member.node}.{member.incarnation}" for member in status.world)
    return f"{status.fence.attempt}.{status.fence.round}:{members}"


def _absent(record: JobRecord, status: JobStatus | None) -> list[int]:
    here = {member.node for member in status.world} if status is not None and _trains(status) else set()
    return sorted(slot.node for slot in record.slots if slot.node not in here)


def _round(values: dict[str, Any]) -> str:
    return f"round {values['round']} trains on {values['nodes']} nodes, {values['world_size']} ranks"


def _named(nodes: list[int]) -> str:
    return f"; missing: node {', '.join(map(str, nodes))}" if nodes else ""
