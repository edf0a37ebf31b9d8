"""Durations: phases, attempts, rounds, and the use of every second of the job. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rallypoint.report.model import Goodput, Share, Span, Timeline
from rallypoint.supervision.record import Attempt, JobRecord, Phase
from rallypoint.wire.incident import Cause, Incident
from rallypoint.wire.status import JobStatus

__all__ = ["LOST", "attempts", "goodput", "phases", "rounds", "seconds_per_step", "timeline_of", "work"]

TRAINING, AGAIN, STARTING, QUEUED, SUSPENDED, RESET = "training", "again", "starting", "queued", "suspended", "reset"

#: Labels of lost time; causes of incidents have their own names.
LOST = {
    AGAIN: "Repeated steps",
    STARTING: "Starting up",
    QUEUED: "Waiting to start",
    SUSPENDED: "Suspended",
    RESET: "Reset of the job",
    Cause.PROCESS.value: "Lost workers",
    Cause.NODE.value: "Lost nodes",
    Cause.HANG.value: "Hangs",
    Cause.RENDEZVOUS.value: "Waiting for nodes to join",
    Cause.SCALE.value: "Resize",
    Cause.PREEMPTION.value: "Preemption",
    Cause.EVACUATION.value: "Leaving a bad host",
}

#: Priority if two causes overlap: the time counts for the first.
_FIRST = (*(c.value for c in Cause), RESET, SUSPENDED, QUEUED, STARTING, AGAIN)

#: Causes without lost time: training continues without a coordinator, and the end of an attempt shows as a gap.
_NO_LOSS = frozenset({Cause.COORDINATOR, Cause.JOB})

_ENDED = (Phase.SUCCEEDED, Phase.FAILED)


def timeline_of(
    record: JobRecord, status: JobStatus | None, work: tuple[Span, ...], tries: Mapping[str, int], now: float
) -> Timeline:
    """Return the lanes of a job up to `now`."""
    return Timeline(
        start=record.created_at,
        end=max(now, record.created_at),
        phases=phases(record),
        attempts=attempts(record, tries),
        rounds=rounds(record, status),
        work=work,
    )


def phases(record: JobRecord) -> tuple[Span, ...]:
    """Return the job's phases from its history; the last one lasts."""
    words = {phase.value.lower(): phase.value for phase in Phase if phase.value}
    told = [(event.at, words[event.kind], event.detail) for event in record.history if event.kind in words]
    changes = [(record.created_at, "Submitted", ""), *told]
    spans = []
    for (at, label, note), later in itertools.zip_longest(changes, changes[1:]):
        # A final phase has no duration.
        over = at if label in {phase.value for phase in _ENDED} else None
        spans.append(Span(kind=label.lower(), label=label, start=at, end=later[0] if later else over, note=note))
    return tuple(span for span in spans if span.end is None or span.end > span.start or span.kind in {"succeeded", "failed"})


def attempts(record: JobRecord, tries: Mapping[str, int]) -> tuple[Span, ...]:
    """Return the job's attempts; `tries` are the task's, by owner, which says during which of them each began."""

    def told(attempt: Attempt) -> Span:
        during = f" (try {tries[attempt.owner]})" if attempt.owner in tries else ""
        ended = attempt.ended_at is not None
        kind = _outcome(attempt) if ended else "running"
        note = " ".join(part for part in (attempt.reason, attempt.message) if part)
        return Span(
            kind=kind, label=f"Attempt {attempt.number}{during}", start=attempt.started_at, end=attempt.ended_at, note=note
        )

    return tuple(told(attempt) for attempt in record.attempts)


def _outcome(attempt: Attempt) -> str:
    if attempt.reason == "Completed":
        return "succeeded"
    return "suspended" if attempt.reason == "Suspended" else "failed"


def rounds(record: JobRecord, status: JobStatus | None) -> tuple[Span, ...]:
    """Return the rounds of the current attempt, as far as its coordinator tells them."""
    if status is None:
        return ()
    began = {event.round: event for event in status.events if event.kind == "round"}
    sizes = {sample.round: sample.world_size for sample in status.samples}
    over = record.attempts[-1].ended_at if record.attempts else None
    ordered = [began[number] for number in sorted(began)]
    spans = []
    for event, later in itertools.zip_longest(ordered, ordered[1:]):
        ranks = f": {sizes[event.round]} ranks" if event.round in sizes else ""
        end = later.at if later is not None else over
        spans.append(Span(kind="round", label=f"Round {event.round}{ranks}", start=event.at, end=end, note=event.detail))
    return tuple(spans)


def seconds_per_step(status: JobStatus | None) -> float | None:
    """Return the median duration of a step between two samples of one round; None without two samples."""
    if status is None:
        return None
    steps = [s for s in status.samples if s.step is not None]
    took = sorted(
        (later.at - earlier.at) / (later.step - earlier.step)
        for earlier, later in itertools.pairwise(steps)
        if earlier.step is not None and later.step is not None and later.step > earlier.step and later.round == earlier.round
    )
    return took[len(took) // 2] if took else None


def work(record: JobRecord, status: JobStatus | None, incidents: Sequence[Incident], *, until: float) -> tuple[Span, ...]:
    """Return the use of the time from the submission to `until`: training, or a cause of lost time."""
    begin = record.created_at
    until = max(until, begin)
    known = tuple(
        (max(start, begin), min(end, until), kind)
        for start, end, kind in _occupied(record, status, incidents, until)
        if min(end, until) > max(start, begin)
    )
    spans: list[Span] = []
    for start, end, kind in _swept(known, begin, until):
        if spans and spans[-1].kind == kind:
            start = spans.pop().start  # noqa: PLW2901  it goes on
        spans.append(Span(kind=kind, label=LOST.get(kind, "Training"), start=start, end=end))
    return tuple(spans)


def _swept(known: Sequence[tuple[float, float, str]], begin: float, until: float) -> Iterator[tuple[float, float, str]]:
    """Yield the time from each edge of a span to the next one, with the first of the kinds that it belongs to."""
    changes: dict[float, list[tuple[str, int]]] = {begin: [], until: []}
    for start, end, kind in known:
        changes.setdefault(start, []).append((kind, 1))
        changes.setdefault(end, []).append((kind, -1))
    open_spans = dict.fromkeys(_FIRST, 0)
    for start, end in itertools.pairwise(sorted(changes)):
        for kind, change in changes[start]:
            open_spans[kind] += change
        yield start, end, next((kind for kind, count in open_spans.items() if count), TRAINING)


def goodput(spans: Iterable[Span]) -> Goodput:
    """Return the training time, and the lost time by cause, the largest first."""
    sums: dict[str, float] = {}
    for span in spans:
        sums[span.kind] = sums.get(span.kind, 0.0) + (span.end or span.start) - span.start
    lost = (Share(kind=kind, label=LOST[kind], seconds=round(s, 3)) for kind, s in sums.items() if kind != TRAINING and s > 0)
    return Goodput(
        trained=round(sums.get(TRAINING, 0.0), 3),
        total=round(sum(sums.values()), 3),
        lost=tuple(sorted(lost, key=lambda share: -share.seconds)),
    )


def _occupied(
    record: JobRecord, status: JobStatus | None, incidents: Sequence[Incident], until: float
) -> Iterator[tuple[float, float, str]]:
    """Yield start and end of each period without training."""
    if not record.attempts:
        suspended = record.phase is Phase.SUSPENDED and record.suspend
        yield record.created_at, until, SUSPENDED if suspended else QUEUED
        return
    yield record.created_at, record.attempts[0].started_at, QUEUED
    for attempt, following in itertools.zip_longest(record.attempts, record.attempts[1:]):
        current = following is None
        yield attempt.started_at, _first_training(attempt, status if current else None, until), STARTING
        if attempt.ended_at is not None and not (current and record.finished):
            kind = SUSPENDED if attempt.reason == "Suspended" else RESET
            yield attempt.ended_at, until if current else following.started_at, kind
    pace = seconds_per_step(status)
    ends = {attempt.number: attempt.ended_at for attempt in record.attempts}
    for incident in incidents:
        if incident.cause in _NO_LOSS:
            continue
        end = incident.recovered_at or ends.get(incident.id.attempt) or until
        yield incident.detected_at, end, incident.cause.value
        if pace is not None and incident.steps_lost and incident.recovered_at:
            yield end, end + pace * incident.steps_lost, AGAIN


def _first_training(attempt: Attempt, status: JobStatus | None, until: float) -> float:
    """Return when an attempt first trained: with its first step, or else its first round, or when it was ready."""
    if status is not None:
        steps = (event.at for event in status.events if event.kind == "first-step")
        rounds = (sample.at for sample in status.samples)
        first = next(steps, None) or next(rounds, None)
        if first is not None:
            return first
    return attempt.ready_at or attempt.ended_at or until
