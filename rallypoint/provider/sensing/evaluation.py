"""Whether the condition of a sensor holds: one rule for each kind of condition. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rallypoint.provider.sensing.conditions import (
    ENDED,
    Condition,
    HangCondition,
    ProgressCondition,
    RendezvousCondition,
    StateCondition,
)
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.observation import Memory, Seen, job_values, not_yet
from rallypoint.report.format import metrics_text
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire import codec
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.incident import Cause, Incident, Rung, merge_incidents
from rallypoint.wire.sections import value_of
from rallypoint.wire.status import JobState, JobStatus, Progress

__all__ = ["judge", "judge_hang", "judge_progress", "judge_state", "judge_world"]


def judge_hang(
    asked: HangCondition,
    record: JobRecord,
    status: JobStatus | None,
    seen: Seen,  # noqa: ARG001  all judges are called alike
    memory: Memory,
) -> tuple[Finding, Memory]:
    """Evaluate the present status of the coordinator, and the stored incidents."""
    hang: Hang | None = value_of(status, "hang") if status is not None else None
    incidents = _hangs(record, status)
    values = {**job_values(record, status), "hang": _level(hang, incidents), "culprits": _culprits(hang, incidents)}
    if asked.evidence:
        values["evidence"] = {
            "hang": None if hang is None else codec.to_json(hang),
            "incidents": [codec.to_json(incident) for incident in incidents],
        }
    if not _is_met(asked, hang, incidents):
        return not_yet(f"a {asked.level} of a hang", record, values), memory
    return Finding(found=Found.MET, text=_text(record, hang, incidents), values=values), memory


def _is_met(asked: HangCondition, hang: Hang | None, incidents: tuple[Incident, ...]) -> bool:
    level = _level(hang, incidents)
    return level == HangState.VERDICT.value or (level == HangState.DOUBT.value and asked.level == level)


def _hangs(record: JobRecord, status: JobStatus | None) -> tuple[Incident, ...]:
    told = merge_incidents(record.incidents, () if status is None else status.incidents)
    run = {attempt.number for attempt in record.attempts if attempt.owner == record.owner} | {record.attempt}
    return tuple(incident for incident in told if incident.cause is Cause.HANG and incident.id.attempt in run)


def _level(hang: Hang | None, incidents: tuple[Incident, ...]) -> str:
    if (hang is not None and hang.state is HangState.VERDICT) or any(not _is_doubt(incident) for incident in incidents):
        return HangState.VERDICT.value
    return HangState.DOUBT.value if hang is not None or incidents else ""


def _is_doubt(incident: Incident) -> bool:
    """Return whether an incident is the notification of a silence without positive evidence: nothing answers it."""
    return incident.rung is Rung.NOTIFY and incident.answer is None


def _culprits(hang: Hang | None, incidents: tuple[Incident, ...]) -> list[int]:
    if hang is not None and hang.culprits:
        return list(hang.culprits)
    culprit = incidents[-1].culprit if incidents else None
    return [culprit.rank] if culprit is not None and culprit.rank >= 0 else []


def _text(record: JobRecord, hang: Hang | None, incidents: tuple[Incident, ...]) -> str:
    what = incidents[-1].reason if incidents else ""
    if hang is not None and hang.reason:
        what = hang.reason
    level = _level(hang, incidents)
    return f"job {record.name}: {'a doubt' if level == HangState.DOUBT.value else 'a hang'}: {what}"


def judge_progress(
    asked: ProgressCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory
) -> tuple[Finding, Memory]:
    """Evaluate the newer progress of coordinator and record."""
    progress = status.progress if status is not None and status.progress.step is not None else record.progress
    values = {**job_values(record, status), "step": progress.step, "metrics": dict(progress.metrics)}
    if asked.no_progress_for:
        return _standstill(asked, record, status, seen, memory, values)
    if _reached(asked, progress):
        text = f"job {record.name} is at step {progress.step} {metrics_text(progress)}".rstrip()
        return Finding(found=Found.MET, text=text, values=values), memory
    return not_yet(_wanted(asked, progress), record, values, so_far=_so_far(record, progress)), memory


def _reached(asked: ProgressCondition, progress: Progress) -> bool:
    if asked.min_step:
        return progress.step is not None and progress.step >= asked.min_step
    value = progress.metrics.get(asked.metric)
    if value is None:
        return False
    # A value that is not a number is on neither side.
    return value >= asked.above if asked.above is not None else asked.below is not None and value <= asked.below


def _wanted(asked: ProgressCondition, progress: Progress) -> str:
    if asked.min_step:
        return f"step {asked.min_step}" + (" (its script does not report steps)" if progress.step is None else "")
    side = f"above {asked.above:g}" if asked.above is not None else f"below {asked.below:g}"
    return f"{asked.metric} {side}" + ("" if asked.metric in progress.metrics else " (the metric was not reported)")


def _standstill(
    asked: ProgressCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory, values: dict[str, Any]
) -> tuple[Finding, Memory]:
    step = values["step"]
    tries = record.phase is Phase.RUNNING and status is not None and status.state in (JobState.RUNNING, JobState.FORMING)
    if not tries or step is None:
        # Between two attempts nothing is counted, and nothing is forgotten: the next one has to pass the highest step, too.
        memory = memory.marked("", seen) if step is None else _paused(memory, seen)
        unknown = f"job {record.name} has reported no step yet" if tries else ""
        return not_yet("a standstill", record, values, so_far=unknown), memory
    # Going back to a checkpoint is no progress, and neither is coming as far as before.
    newest = max(step, int(memory.mark or -1))
    memory = memory.marked(str(newest), seen)
    if memory.spent >= asked.no_progress_for:
        text = f"job {record.name}: no step above {newest} for {memory.spent:.0f} s"
        return Finding(found=Found.MET, text=text, values={**values, "no_progress_for": memory.spent}), memory
    wake = asked.no_progress_for - memory.spent
    return not_yet("a standstill", record, values, wake=wake, so_far=_so_far(record, Progress(step=step))), memory


def _paused(memory: Memory, seen: Seen) -> Memory:
    return dataclasses.replace(memory, at=seen.now)


def _so_far(record: JobRecord, progress: Progress) -> str:
    if progress.step is None:
        return ""
    return f"job {record.name} is {record.phase.value} at step {progress.step} {metrics_text(progress)}".rstrip()


def judge_state(
    asked: StateCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory
) -> tuple[Finding, Memory]:
    """Compare with the record."""
    values = job_values(record, status)
    so = _is_so(asked, record)
    memory = memory.marked("so" if so else "", seen)
    if so and (memory.spent >= asked.stable_for or record.finished):
        return Finding(found=Found.MET, text=f"job {record.name} is {_words(asked, record)}", values=values), memory
    wake = asked.stable_for - memory.spent if so else None
    return not_yet(_wanted_state(asked), record, values, wake=wake), memory


def _is_so(asked: StateCondition, record: JobRecord) -> bool:
    if asked.condition:
        found = record.find(ConditionType(asked.condition))
        return found is not None and found.value is asked.value
    # Who waits for a job to run is late, and not wrong, when it has succeeded meanwhile.
    passed = asked.phase == Phase.RUNNING.value and record.phase is Phase.SUCCEEDED
    return asked.phase == record.phase.value or passed or (asked.phase == ENDED and record.finished)


def _words(asked: StateCondition, record: JobRecord) -> str:
    if not asked.condition:
        return record.phase.value
    found = record.find(ConditionType(asked.condition))
    return f"{record.phase.value}, {_wanted_state(asked)}" + (
        f" ({found.reason})" if found is not None and found.reason else ""
    )


def _wanted_state(asked: StateCondition) -> str:
    return asked.phase or f"{asked.condition}={asked.value}"


def judge_world(
    asked: RendezvousCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory
) -> tuple[Finding, Memory]:
    """Evaluate the nodes and ranks of the last round."""
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
    return not_yet(_wanted_world(asked), record, values, wake=wake, so_far=so_far), memory


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
    return not_yet("a round with missing nodes", record, values, wake=wake), memory


def _enough(asked: RendezvousCondition, status: JobStatus | None, nodes: int) -> bool:
    return status is not None and len(status.world) >= nodes and status.world_size >= asked.min_world_size


def _wanted_world(asked: RendezvousCondition) -> str:
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


_JUDGES: dict[type[Condition], Any] = {
    HangCondition: judge_hang,
    ProgressCondition: judge_progress,
    RendezvousCondition: judge_world,
    StateCondition: judge_state,
}


def judge(condition: Condition, name: str, seen: Seen, memory: Memory) -> tuple[Finding, Memory]:
    """Return whether the condition of a job or role is true, still possible, or no longer possible."""
    refused = "" if seen.roles is None else _refused_role(condition, name, seen.role, seen.roles)
    if refused:
        return Finding(found=Found.IMPOSSIBLE, text=refused, values={"job": name}), memory
    record = seen.record
    if record is None:
        if memory.uid:
            return Finding(found=Found.IMPOSSIBLE, text=f"job {name} was deleted", values={"job": name}), memory
        what = f"role {seen.role} of job {name!r}" if seen.role else f"job {name!r}"
        return Finding(found=Found.WAITING, text=f"{what} does not exist yet"), memory
    if record.uid != memory.uid:
        memory = Memory(uid=record.uid)  # submitted anew: nothing of the other one counts
    status = seen.status
    mine = status if status is not None and status.uid == record.uid and status.fence.attempt == record.attempt else None
    judged: tuple[Finding, Memory] = _JUDGES[type(condition)](condition, record, mine, seen, memory)
    if not seen.role:
        return judged
    finding, memory = judged
    return dataclasses.replace(finding, values={**finding.values, "job": name, "role": seen.role}), memory


def _refused_role(condition: Condition, name: str, role: str, roles: Mapping[str, bool]) -> str:
    """Return why a condition cannot be asked of a role of a job, "" where it can."""
    whole = isinstance(condition, StateCondition)
    if not roles:
        return f"role: {role!r} is not allowed, because job {name} has one role; omit role" if role else ""
    allowed = [one for one, elastic in roles.items() if elastic or whole]
    if role in allowed or (whole and not role):
        return ""
    expected = f"expected {'a role' if whole else 'an elastic role'} of job {name}: {', '.join(allowed)}"
    if not allowed:
        expected = f"job {name} has no elastic role; use JobStateSensor"
    return f"role: {role!r} is not allowed; {expected}"
