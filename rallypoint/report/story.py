"""Build the report of a job from record and status; only this module counts incidents. Pure; `now` is an argument."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from rallypoint.report import timeline
from rallypoint.report.format import span
from rallypoint.report.headline import headline
from rallypoint.report.incidents import ListedIncident, current_status, done, incidents_of, judgement, list_incidents
from rallypoint.report.model import Deadline, Entry, Loss, Story
from rallypoint.supervision.clocks import CLOCKS
from rallypoint.supervision.reconcile import Decision
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.incident import FREE, Cause, Incident, Rung
from rallypoint.wire.missing import Absence
from rallypoint.wire.plan import Plan
from rallypoint.wire.sections import value_of
from rallypoint.wire.status import JobState, JobStatus, Progress

__all__ = ["QUIET", "silence", "story_of"]

#: Kinds of history entries that repeat an incident, so they are not shown.
_TWICE = frozenset({"node-lost", "node-evacuated", "coordinator-lost", "restarted", "not-restarted"})

_SETTINGS = {clock.name: clock.setting for clock in CLOCKS}

#: Rungs on which workers are started again.
_RESTARTED = {Rung.RECOVER_IN_PLACE, Rung.RESTART_WORKERS, Rung.RECOVER, Rung.ELASTIC_TRAINING}

#: Seconds without a report or sign of life after which the silence is shown.
QUIET = 5.0


def story_of(
    record: JobRecord,
    status: JobStatus | None,
    *,
    now: float,
    plan: Plan | None = None,
    decision: Decision | None = None,
    status_age: float | None = None,
    tries: Mapping[str, int] | None = None,
    clocks: Iterable[Deadline] = (),
) -> Story:
    """Return the report of a job at `now` (seconds since the epoch).

    Args:
        record: of the supervisor.
        status: the coordinator's last status; a status of another attempt or job is ignored.
        now: end of all ages and durations.
        plan: of the job; None if unknown.
        decision: the decision of a supervisor turn now; None if unknown.
        status_age: seconds since the coordinator's last status; None if unknown.
        tries: numbers of the task's tries, by the owner that each was.
        clocks: running clocks of the backend, which the record does not contain.
    """
    status = current_status(record, status)
    listed, details = list_incidents(record, status), incidents_of(record, status)
    loss = _loss(record, listed, details, now, None if plan is None else plan.budgets.retry_limit)
    quiet = silence(status, status_age)
    deadlines = tuple(sorted((*_deadlines(decision, now), *clocks), key=lambda deadline: deadline.at))
    work = timeline.work(record, status, details, until=now)
    return Story(
        record=record,
        status=status,
        progress=_latest_progress(record, status),
        headline=headline(record, status, details, faults=loss.faults, quiet=quiet),
        standing=_standing(record, None if plan is None else plan.budgets.retry_limit),
        silence=quiet,
        conditions=tuple(_conditions(record, quiet, now)),
        incidents=listed,
        details=details,
        restarts=_restarts(record, details, plan),
        loss=loss,
        # A fault comes before its action at the same time.
        entries=tuple(sorted((*_incidents(details), *_history(record, details)), key=lambda entry: entry.at)),
        timeline=timeline.timeline_of(record, status, work, tries or {}, now),
        goodput=timeline.goodput(work),
        pending=_pending(record, decision),
        deadlines=deadlines,
        waits="" if deadlines else _waits(record, decision),
    )


# --- Where it stands -------------------------------------------------------------------------------------------------------


def _standing(record: JobRecord, retry_limit: int | None) -> str:
    phase = record.phase.value or "Submitted"
    parts = [f"Job {record.name}: phase {phase}"]
    if record.attempt:
        parts.append(f"attempt {record.attempt}")
    parts.append(f"{record.retries} retries used" if retry_limit is None else f"{record.retries} of {retry_limit} retries used")
    if record.progress.step is not None:
        parts.append(f"step {record.progress.step}")
    return ", ".join(parts) + "."


_SAYS = {
    (ConditionType.UNHEALTHY, True): "unhealthy",
    (ConditionType.PODS_READY, True): "ready",
    (ConditionType.PODS_READY, False): "not ready",
    (ConditionType.DELETING_RESOURCES, True): "being deleted",
}


def _conditions(record: JobRecord, quiet: str, now: float) -> Iterator[str]:
    # The clock is saved from time to time; in between it advances with the time of day.
    clock = record.clock if record.released else record.clock + max(0.0, now - record.last_now)
    if quiet and not record.finished:
        yield f"{quiet}; the values below are from that report" if quiet.startswith("last report") else quiet
    if record.waits_for:
        yield f"waits for {record.waits_for}"
    if record.verdict is not None:
        yield f"verdict {record.verdict.outcome.value} ({record.verdict.reason}): {record.verdict.message}"
    for condition in record.conditions:
        words = _SAYS.get((condition.type, condition.value))
        if words is not None and not (record.finished and condition.type is ConditionType.PODS_READY):
            yield f"{words} for {span(clock - condition.clock)} ({condition.reason})"
    if record.suspend:
        yield "suspension was requested"
    if record.deletion:
        yield "deletion was requested"


def _latest_progress(record: JobRecord, status: JobStatus | None) -> Progress:
    told = None if status is None else status.progress
    return record.progress if told is None or told.step is None else told


def silence(status: JobStatus | None, age: float | None) -> str:
    """Return `last report 12 s ago`, `last sign of life 12 s ago`, or "" if neither is older than `QUIET` seconds.

    For nodes with overdue reports: `last report of node 1 12 s ago`.

    Args:
        status: the coordinator's last status.
        age: seconds since it was written or received, by the clock of one machine; None if unknown.
    """
    if status is None or status.verdict is not None:
        return ""
    if age is not None and age >= QUIET:
        return f"last report {span(age)} ago"
    lively_at: float = value_of(status, "lively_at", 0.0)
    if status.state is not JobState.RUNNING or not lively_at:
        return ""
    # These times are by the coordinator's clock; the age of the status is added.
    now = status.updated_at + (age or 0.0)
    silent = [one for one in status.missing if one.why is Absence.SILENT and now - one.since >= QUIET]
    if silent:
        first = min(silent, key=lambda one: one.since)
        more = "" if len(silent) == 1 else f" (and {len(silent) - 1} more)"
        return f"last report of node {first.node}{more} {span(now - first.since)} ago"
    quiet = now - lively_at
    return f"last sign of life {span(quiet)} ago" if quiet >= QUIET else ""


# --- What happened ---------------------------------------------------------------------------------------------------------


def _history(record: JobRecord, incidents: Iterable[Incident]) -> Iterator[Entry]:
    phases = {phase.value.lower(): phase.value for phase in Phase}
    resets = {incident.detected_at for incident in incidents if incident.rung is Rung.RESET}
    for event in record.history:
        twice = event.kind in _TWICE or (event.kind == Phase.RESETTING.value.lower() and event.at in resets)
        if not twice:
            yield Entry(at=event.at, text=f"{phases.get(event.kind, event.kind)}: {event.detail}")
    for folded in record.folded:
        where = f" of node {folded.node}" if folded.node >= 0 else ""
        attempt = f" in attempt {folded.attempt}" if folded.attempt else ""
        text = f"{folded.count} older faults{where}{attempt} ({folded.cause.value}) until this time; only their count is kept"
        yield Entry(at=folded.last_at, text=text)


def _incidents(incidents: Iterable[Incident]) -> Iterator[Entry]:
    for number, incident in enumerate(incidents, start=1):
        head = f"{Phase.RESETTING.value}, incident {number}" if incident.rung is Rung.RESET else f"incident {number}"
        text = f"{head}: {incident.reason}"
        yield Entry(at=incident.detected_at, text=text, more=tuple(_short(incident)), incident=number)


def _short(incident: Incident) -> Iterator[str]:
    if incident.culprit is not None and incident.culprit.error and incident.culprit.error not in incident.reason:
        yield f"error: {incident.culprit.error}"
    yield f"verdict: {judgement(incident)}"
    yield f"action: {done(incident)}"


# --- What comes next -------------------------------------------------------------------------------------------------------


def _pending(record: JobRecord, decision: Decision | None) -> str:
    if decision is None or decision.record.phase is record.phase:
        return ""
    told = decision.record.history[len(record.history) :]
    why = told[-1].detail if told else ""
    return f"the next supervisor turn would change the phase to {decision.record.phase.value}" + (f": {why}" if why else "")


def _deadlines(decision: Decision | None, now: float) -> Iterator[Deadline]:
    if decision is None:
        return
    for deadline in decision.deadlines:
        within = max(0.0, deadline.at - decision.record.clock)
        setting = _SETTINGS.get(deadline.clock, "")
        yield Deadline(at=now + within, within=within, clock=deadline.clock, then=deadline.then, setting=setting)


def _waits(record: JobRecord, decision: Decision | None) -> str:
    if record.conductor is not None and not record.released:
        return "the supervisor acts when an instance or an elastic role ends"
    if decision is None and record.conductor is None:
        return "unknown: the job's plan is not available, and it defines the clocks"
    if decision is not None and decision.deadlines:
        return ""
    if decision is None or decision.done or record.released:
        return "nothing: the job has ended and holds no resources"
    if decision.record.phase is Phase.SUSPENDED:
        return "the job waits to be resumed by a user or its queue; no clock is running"
    if decision.record.phase is Phase.RUNNING:
        return "no clock is running; the job continues until a node or the coordinator reports its end"
    return "the job waits until the requested change is observed"


# --- What it has cost ------------------------------------------------------------------------------------------------------


def _loss(
    record: JobRecord, listed: Iterable[ListedIncident], details: tuple[Incident, ...], now: float, retry_limit: int | None
) -> Loss:
    rows = tuple(listed)
    spans = (*_unhealed(record, details, now), *_between(record, now))
    return Loss(
        faults=sum(row.count for row in rows if row.fault),
        free=sum(row.count for row in rows if row.cause in FREE),
        healed=sum(row.count for row in rows if row.fault and row.recovered),
        restarts=sum(1 for i in details if i.rung in _RESTARTED and i.cause is not Cause.COORDINATOR),
        steps=sum(row.steps_lost or 0 for row in rows),
        seconds=_union(spans),
        resets=record.retries,
        resets_left=None if retry_limit is None else max(0, retry_limit - len(record.charges)),
    )


def _restarts(record: JobRecord, details: Iterable[Incident], plan: Plan | None) -> tuple[Incident, ...]:
    """Return the faults of this attempt with a worker restart; the fault that exceeded the budget is not one of them."""
    faults = (i for i in details if i.cause is Cause.PROCESS and i.id.attempt == record.attempt)
    ordered = tuple(sorted(faults, key=lambda i: i.detected_at))
    return ordered if plan is None else ordered[: plan.budgets.max_restarts]


def _unhealed(record: JobRecord, incidents: Iterable[Incident], now: float) -> Iterator[tuple[float, float]]:
    """Yield start and end of each interruption by a fault."""
    ends = {attempt.number: attempt.ended_at for attempt in record.attempts}
    for incident in incidents:
        if incident.cause in FREE or incident.cause is Cause.JOB:
            continue
        end = incident.recovered_at or ends.get(incident.id.attempt) or now
        yield incident.detected_at, end


def _between(record: JobRecord, now: float) -> Iterator[tuple[float, float]]:
    """Yield the end of each attempt and the time when the next one was ready (or started, if that is unknown)."""
    for attempt, following in itertools.zip_longest(record.attempts, record.attempts[1:]):
        # Suspended time and the time after the last attempt are not lost time.
        if attempt.ended_at is None or attempt.reason == "Suspended" or (following is None and record.finished):
            continue
        yield attempt.ended_at, now if following is None else following.ready_at or following.started_at


def _union(spans: Iterable[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
