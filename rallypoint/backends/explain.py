"""The story of a job as an on-call engineer asks for it: what broke where, what was done by which rule, what is next. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rallypoint.backends.explain_incident import done, judgement
from rallypoint.backends.freshness import silence
from rallypoint.backends.incident_list import count_faults, incidents_of
from rallypoint.backends.story import span
from rallypoint.supervision.clocks import CLOCKS
from rallypoint.supervision.reconcile import Decision
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.incident import FREE, Cause, Incident, Rung
from rallypoint.wire.status import JobStatus

__all__ = [
    "Account",
    "Entry",
    "Loss",
    "Next",
    "account",
]

#: Told by an incident with all that is known of it, so the line of history would say it twice.
_TWICE = frozenset({"node-lost", "node-evacuated", "coordinator-lost"})

_SETTINGS = {clock.name: clock.setting for clock in CLOCKS}

_DAY = 86400


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the story, at seconds since the epoch; `incident` is its number, 0 for what is no incident."""

    at: float
    text: str
    more: tuple[str, ...] = ()
    incident: int = 0


@dataclass(frozen=True, kw_only=True)
class Next:
    """A clock that runs: at `at` (seconds since the epoch), `within` seconds from now, `then` happens unless something changes.

    `setting` is the field of the job that sets it.
    """

    at: float
    within: float
    clock: str
    then: str
    setting: str


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What the faults have cost.

    Attributes:
        faults: incidents in which something broke; `free` those that no budget pays for; `healed` of both.
        steps: that had to be trained again.
        seconds: between a fault, or the end of an attempt, and the moment when everything trained again.
        resets, resets_left: of the whole job; None where the limit is not known.
    """

    faults: int
    free: int
    healed: int
    steps: int
    seconds: float
    resets: int
    resets_left: int | None


@dataclass(frozen=True, kw_only=True)
class Account:
    """The whole story.

    Attributes:
        headline: where the job stands, in a sentence.
        state: the conditions that say why, a line each.
        story: what happened, the oldest first.
        would: what a supervisor's turn would change now, "" where it would change nothing.
        coming: the clocks that run, the next one first; `waits` says what it waits for where none does.
        loss: what it has cost.
    """

    headline: str
    state: tuple[str, ...]
    story: tuple[Entry, ...]
    would: str
    coming: tuple[Next, ...]
    waits: str
    loss: Loss


def account(
    record: JobRecord,
    decision: Decision | None,
    *,
    now: float,
    status: JobStatus | None = None,
    retry_limit: int | None = None,
    status_age: float | None = None,
) -> Account:
    """Return the story of a job at `now` (seconds since the epoch).

    Args:
        record: what the supervisor remembers.
        decision: what a turn would decide now; None where the policy is not known.
        now: ages are counted up to here.
        status: the coordinator's last word, if it speaks of this attempt.
        retry_limit: of the policy.
        status_age: seconds since the coordinator's last word; None where that is not known.
    """
    incidents = incidents_of(record, status)
    return Account(
        headline=_headline(record, retry_limit),
        state=tuple(_state(record, silence(status, status_age))),
        # What broke stands before what was done about it at the same moment.
        story=tuple(sorted((*_incidents(incidents), *_history(record, incidents)), key=lambda entry: entry.at)),
        would=_would(record, decision),
        coming=tuple(_coming(decision, now)),
        waits=_waits(record, decision),
        loss=_loss(record, incidents, count_faults(record, status), now, retry_limit),
    )


# --- Where it stands -------------------------------------------------------------------------------------------------------


def _headline(record: JobRecord, retry_limit: int | None) -> str:
    phase = record.phase.value or "Submitted"
    parts = [f"Job {record.name} is {phase}"]
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


def _state(record: JobRecord, quiet: str) -> Iterator[str]:
    if quiet and not record.finished:
        yield f"{quiet}: what follows was so then" if quiet.startswith("last report") else quiet
    if record.waits_for:
        yield f"waits for {record.waits_for}"
    if record.verdict is not None:
        yield f"verdict {record.verdict.outcome.value} ({record.verdict.reason}): {record.verdict.message}"
    for condition in record.conditions:
        words = _SAYS.get((condition.type, condition.value))
        if words is not None and not (record.finished and condition.type is ConditionType.PODS_READY):
            yield f"{words} for {span(record.clock - condition.clock)} ({condition.reason})"
    if record.suspend:
        yield "suspension was requested"
    if record.deletion:
        yield "deletion was requested"


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
    yield f"judged: {judgement(incident)}"
    yield f"done: {done(incident)}"


# --- What comes next -------------------------------------------------------------------------------------------------------


def _would(record: JobRecord, decision: Decision | None) -> str:
    if decision is None or decision.record.phase is record.phase:
        return ""
    told = decision.record.history[len(record.history) :]
    why = told[-1].detail if told else ""
    return f"the next supervisor turn would change the phase to {decision.record.phase.value}" + (f": {why}" if why else "")


def _coming(decision: Decision | None, now: float) -> Iterator[Next]:
    if decision is None:
        return
    for deadline in decision.deadlines:
        within = max(0.0, deadline.at - decision.record.clock)
        setting = _SETTINGS.get(deadline.clock, "")
        yield Next(at=now + within, within=within, clock=deadline.clock, then=deadline.then, setting=setting)


def _waits(record: JobRecord, decision: Decision | None) -> str:
    if decision is None:
        return "unknown: the job's plan is not available, and it defines the clocks"
    if decision.deadlines:
        return ""
    if decision.done or record.released:
        return "nothing: the job has ended and holds no resources"
    if decision.record.phase is Phase.SUSPENDED:
        return "the job waits to be resumed by a user or its queue; no clock is running"
    if decision.record.phase is Phase.RUNNING:
        return "no clock is running; the job continues until a node or the coordinator reports its end"
    return "the job waits until the requested change is observed"


# --- What it has cost ------------------------------------------------------------------------------------------------------


def _loss(record: JobRecord, incidents: tuple[Incident, ...], faults: int, now: float, retry_limit: int | None) -> Loss:
    spans = (*_unhealed(record, incidents, now), *_between(record, now))
    return Loss(
        faults=faults,
        free=sum(1 for i in incidents if i.cause in FREE) + sum(f.count for f in record.folded if f.cause in FREE),
        healed=sum(1 for i in incidents if i.healed_at is not None),
        steps=sum(i.steps_lost or 0 for i in incidents),
        seconds=_union(spans),
        resets=record.retries,
        resets_left=None if retry_limit is None else max(0, retry_limit - len(record.charges)),
    )


def _unhealed(record: JobRecord, incidents: Iterable[Incident], now: float) -> Iterator[tuple[float, float]]:
    """Yield from when to when each fault kept the job from training in full."""
    ends = {attempt.number: attempt.ended_at for attempt in record.attempts}
    for incident in incidents:
        if incident.cause in FREE or incident.cause is Cause.JOB:
            continue
        end = incident.recovered_at or ends.get(incident.id.attempt) or now
        yield incident.detected_at, end


def _between(record: JobRecord, now: float) -> Iterator[tuple[float, float]]:
    """Yield from the end of each attempt to when the next one was ready (or began, where that is not known)."""
    for attempt, following in itertools.zip_longest(record.attempts, record.attempts[1:]):
        # Suspended time is nobody's loss, and after the last end nothing is waited for.
        if attempt.ended_at is None or attempt.reason == "Suspended" or (following is None and record.finished):
            continue
        yield attempt.ended_at, now if following is None else following.ready_at or following.started_at


def _union(spans: Iterable[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
