"""Jobs whose pods another controller makes, and decisions of others that a job waits for: quota, scheduling. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from rallypoint.supervision import wrapped
from rallypoint.supervision.actions import Action, CreateComponents, EndServers, Purge, RemoveComponents, SuspendComponents
from rallypoint.supervision.clocks import Deadline
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation, Told
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Attempt, Condition, ConditionType, JobRecord, Phase
from rallypoint.supervision.trimming import cut
from rallypoint.supervision.turn import Step
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.status import Outcome, Verdict

__all__ = ["LIMIT", "follow", "waits_for"]

#: Seconds after which an object that could not be made is tried again.
_CREATE_AGAIN = 1.0

#: Phases in which an attempt is over.
_ENDED = frozenset({Phase.RESETTING, Phase.SUSPENDING, Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED, Phase.TERMINATING})

_EVACUATION = "AutopilotNoExecute"

#: Charges that a record may hold.
_CHARGES = JobRecord.limits["charges"][1]


def follow(record: JobRecord, seen: Observation, policy: Policy) -> Step:
    """Return the record as the controller's word makes it, and what is to be done so that there is somebody to say it."""
    if record.deletion:
        return _deleted(record, seen, policy)
    if record.finished and seen.told is None:
        return Step(record=_all_gone(record), done=True)
    if record.phase is Phase.EMPTY and (seen.told is None or seen.told.first_attempt <= record.attempt):
        return _begin(record, seen)
    if seen.told is None:
        return _vanished(record, seen)
    record = _taken(record, seen.told, seen.nodes, policy)
    endings = _endings(record, seen.told, seen.nodes)
    record = _with_endings(record) if endings else record
    return Step(record=record, actions=(*_wishes(record, seen.told), *endings), done=record.released)


# --- Before it is there, and when it is not there any more ------------------------------------------------------------------


def _begin(record: JobRecord, seen: Observation) -> Step:
    """Make the object, once that of an earlier run of the job is gone with its pods."""
    if seen.told is not None or seen.present:
        return Step(record=record, actions=() if seen.told is None else (RemoveComponents(),))
    first = record.attempt + 1
    errors = [error for error in seen.create_errors if error.attempt == first]
    fatal = next((error for error in errors if error.fatal), None)
    if fatal is not None:
        return Step(record=_failed(record, "CreateFailed", fatal.reason), done=True)
    again = (Deadline(at=record.clock + _CREATE_AGAIN, clock="admission", then="it is created"),) if errors else ()
    return Step(record=record, actions=(CreateComponents(attempt=first),), deadlines=again)


def _vanished(record: JobRecord, seen: Observation) -> Step:
    """Somebody deleted the object; its pods go with it."""
    if seen.present:
        return Step(record=record)
    return Step(record=_failed(record, "MissingComponent", "its AppWrapper was deleted by another client"), done=True)


def _failed(record: JobRecord, reason: str, message: str) -> JobRecord:
    record = _close(record, reason, message)
    verdict = Verdict(outcome=Outcome.FAILED, reason=reason, message=message)
    record = _all_gone(dataclasses.replace(record.unhealthy(reason), verdict=verdict, phase=Phase.FAILED))
    return record.with_history("failed", message)


def _all_gone(record: JobRecord) -> JobRecord:
    for kind in (ConditionType.RESOURCES_DEPLOYED, ConditionType.QUOTA_RESERVED):
        if record.condition(kind):
            record = record.with_condition(kind, record.phase.value, value=False)
    return record


def _deleted(record: JobRecord, seen: Observation, policy: Policy) -> Step:
    # Whatever it says of its phase until it has heard of the deletion: for us this is how the job ends.
    told = Told(phase=Phase.TERMINATING) if seen.told is None else dataclasses.replace(seen.told, phase=Phase.TERMINATING)
    if seen.told is not None or record.phase is not Phase.TERMINATING:
        record = _taken(record, told, seen.nodes, policy)
    if seen.told is not None:
        return Step(record=record, actions=() if told.deleting else (RemoveComponents(),))
    if seen.present:
        return Step(record=record)
    return Step(record=_all_gone(record), actions=(Purge(),), done=True)


def _wishes(record: JobRecord, told: Told) -> tuple[Action, ...]:
    """A person's wish is carried out; what a queue has suspended is the queue's to resume."""
    # A queue may resume what was suspended before it knew of it: then it is told again.
    undone = record.suspend and not told.suspended
    if record.finished or told.deleting or (record.suspend == told.by_us and not undone):
        return ()
    return (SuspendComponents(suspend=record.suspend),)


def _endings(record: JobRecord, told: Told, nodes: Iterable[NodeSeen]) -> tuple[Action, ...]:
    """All drivers have succeeded, and the controller waits for every pod: the servers end within their pods."""
    if told.phase is not Phase.RUNNING or told.deleting or told.suspended or record.suspend:
        return ()
    return tuple(EndServers(attempt=record.attempt, node=node.node) for node in nodes if node.unneeded)


def _with_endings(record: JobRecord) -> JobRecord:
    line = f"attempt {record.attempt}: all drivers have succeeded; the servers receive SIGTERM"
    known = any(event.kind == "servers-ended" and event.detail == line for event in record.history)
    return record if known else record.with_history("servers-ended", line)


# --- What it says -----------------------------------------------------------------------------------------------------------


def _taken(record: JobRecord, told: Told, nodes: Iterable[NodeSeen], policy: Policy) -> JobRecord:
    """Take over phase, conditions and counts; attempts and incidents are told by what changed."""
    before = record
    deployed = told.find(ConditionType.RESOURCES_DEPLOYED)
    current = record.attempts[-1] if record.attempts and record.attempt >= told.first_attempt else None
    if current is not None and not _is_of(deployed, current):
        record = _ended(record, told)
        current = None
    if current is None and deployed is not None and deployed.value:
        record = _opened(record, told, deployed.at)
    record = wrapped.noted(record, (dataclasses.replace(n, attempt=record.attempt) for n in nodes), policy)
    record = _with_conditions(record, told)
    if told.phase in _ENDED:
        record = _ended(record, told)
    if told.retries > record.retries:
        fresh = (record.clock,) * min(_CHARGES, told.retries - record.retries)
        record = dataclasses.replace(record, retries=told.retries, charges=(*record.charges, *fresh)[-_CHARGES:])
    if told.phase is not before.phase:
        record = dataclasses.replace(record, phase=told.phase).with_history(_word(told), _why(record, told))
    return _with_verdict(record, told)


def _is_of(deployed: Condition | None, attempt: Attempt) -> bool:
    """Return whether the deployment that the controller speaks of is this attempt's, or has just ended."""
    return deployed is None or not deployed.value or deployed.at == attempt.started_at


def _opened(record: JobRecord, told: Told, at: float) -> JobRecord:
    number = max(record.attempt + 1, told.first_attempt)
    attempt = Attempt(number=number, owner=record.owner, started_at=at)
    return dataclasses.replace(record, attempt=number, attempts=(*record.attempts, attempt))


def _with_conditions(record: JobRecord, told: Told) -> JobRecord:
    taken = []
    for condition in told.conditions:
        known = record.find(condition.type)
        same = known is not None and (known.value, known.at) == (condition.value, condition.at)
        clock = known.clock if known is not None and same else record.clock
        taken.append(dataclasses.replace(condition, clock=clock))
    taken.sort(key=lambda condition: condition.type.value)
    if tuple(taken) != record.conditions:
        record = dataclasses.replace(record, conditions=tuple(taken))
    ready = told.find(ConditionType.PODS_READY)
    if ready is None or not ready.value or not record.attempts or record.attempts[-1].ready_at is not None:
        return record
    *earlier, last = record.attempts
    return dataclasses.replace(record, attempts=(*earlier, dataclasses.replace(last, ready_at=ready.at)))


# --- An attempt is over -----------------------------------------------------------------------------------------------------


def _ended(record: JobRecord, told: Told) -> JobRecord:
    """End the attempt with what the controller says of it, and note the reset where there was one."""
    if not record.attempts or record.attempts[-1].ended_at is not None:
        return record
    reason, message = _because(record, told)
    cost = told.retries - record.retries
    evacuated = reason == _EVACUATION and told.phase is not Phase.FAILED
    # A pod that is known to have failed is the incident; the reset answers it.
    if (cost > 0 and wrapped.failure(record) is None) or evacuated:
        incident = Incident(
            id=IncidentId(attempt=record.attempt, round=0),
            cause=Cause.JOB if cost > 0 else Cause.EVACUATION,
            rung=Rung.RESET,
            reason=message,
            detected_at=record.last_now,
            rule=reason,
            clock=record.clock,
        )
        record = dataclasses.replace(record, incidents=merge_incidents(record.incidents, (incident,)))
    return _close(record, reason, message)


def _close(record: JobRecord, reason: str, message: str) -> JobRecord:
    if not record.attempts or record.attempts[-1].ended_at is not None:
        return record
    *earlier, last = record.attempts
    closed = dataclasses.replace(last, ended_at=record.last_now, reason=reason, message=message)
    return dataclasses.replace(record, attempts=(*earlier, closed))


def _because(record: JobRecord, told: Told) -> tuple[str, str]:
    """Return why the attempt ended, in the controller's word and in a sentence that names the pods."""
    if told.phase is Phase.SUCCEEDED:
        return "Completed", "all pods succeeded"
    if told.phase in (Phase.SUSPENDING, Phase.SUSPENDED):
        return "Suspended", "the AppWrapper was suspended" if told.by_us else "its queue suspended it"
    if told.phase is Phase.TERMINATING:
        return "Terminating", "the AppWrapper is being deleted"
    unhealthy = told.find(ConditionType.UNHEALTHY)
    reason = unhealthy.reason if unhealthy is not None and unhealthy.value else "Reset"
    culprits = [i for i in record.incidents if i.id.attempt == record.attempt and i.culprit is not None]
    said = "; ".join(incident.reason for incident in culprits) or told.message(ConditionType.UNHEALTHY)
    return reason, said or "its controller restarted it for an unknown reason"


def _with_verdict(record: JobRecord, told: Told) -> JobRecord:
    if not record.finished or record.verdict is not None:
        return record
    last = record.attempts[-1] if record.attempts else None
    reason, message = _because(record, told) if last is None else (last.reason, last.message)
    outcome = Outcome.SUCCEEDED if told.phase is Phase.SUCCEEDED else Outcome.FAILED
    return dataclasses.replace(record, verdict=Verdict(outcome=outcome, reason=reason, message=message))


def _word(told: Told) -> str:
    return told.phase.value.lower() or "submitted"


def _why(record: JobRecord, told: Told) -> str:
    if told.phase is Phase.RESUMING:
        return f"attempt {record.attempt}"
    if told.phase is Phase.RUNNING:
        return f"attempt {record.attempt}: its components are deployed"
    if told.phase is Phase.RESETTING and told.retries:
        return f"retry {told.retries}: {_because(record, told)[1]}"
    return "it waits for its queue, or for a resume request" if told.phase is Phase.SUSPENDED else _because(record, told)[1]


#: Maximum length of the text in bytes.
LIMIT = 600

_STARTING = frozenset({Phase.EMPTY, Phase.SUSPENDED, Phase.RESUMING, Phase.RUNNING})

#: Format of ResourceQuota: `exceeded quota: tight, requested: pods=1, used: pods=2, limited: pods=2`.
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.*?), used: (?P<used>.*?), limited: (?P<limit>.*)$", re.DOTALL
)


def waits_for(record: JobRecord, seen: Observation) -> str:
    """Return the decision that the job waits for, with known names and numbers; "" if there is none."""
    if record.phase not in _STARTING or record.deletion:
        return ""
    return cut("; ".join((*_not_created(record, seen), *_not_started(record, seen.nodes), *_controller(seen))), LIMIT)


def _not_created(record: JobRecord, seen: Observation) -> Iterator[str]:
    attempts = (record.attempt, record.attempt + 1)  # of kinds whose object opens the attempt
    errors = [error for error in seen.create_errors if error.attempt in attempts and not error.fatal]
    if errors:
        # Only the first unschedulable pod is named: the others request the same resources.
        error = next((one for one in errors if one.waits), errors[0])
        what = "the coordinator" if error.node < 0 else f"node {error.node}"
        found = _QUOTA.search(error.reason)
        if found is None:
            yield error.reason
        else:
            name, asked, used, limit = found["name"], found["asked"], found["used"], found["limit"]
            yield f"quota {name}: {what} asks for {asked}; used {used}, limit {limit}"


def _not_started(record: JobRecord, nodes: Sequence[NodeSeen]) -> Iterator[str]:
    placeless = (n for n in nodes if n.state is NodeState.STARTING and (n.unschedulable or n.gated) and n.reason)
    waiting = [n for n in placeless if n.attempt == record.attempt]
    if waiting:
        first = waiting[0]
        more = "" if len(waiting) == 1 else f" (and {len(waiting) - 1} more)"
        yield f"node {first.node}{more}: {first.reason}"


def _controller(seen: Observation) -> Iterator[str]:
    everyone_runs = bool(seen.nodes) and all(n.state is not NodeState.STARTING for n in seen.nodes)
    if seen.controller and not everyone_runs:
        yield seen.controller
