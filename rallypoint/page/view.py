"""From what is known of a job to what the page shows. Pure: `now` is an argument, and the same job is the same page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rallypoint.backends import explain, explain_incident
from rallypoint.backends.explain_hang import evidence_lines
from rallypoint.backends.freshness import silence
from rallypoint.backends.incident_list import count_faults, incidents_of, is_fault
from rallypoint.backends.recovered import recovered_text
from rallypoint.backends.site import Site
from rallypoint.backends.story import describe_end, describe_holder, describe_who, latest_progress, metrics_text
from rallypoint.page import spans, words
from rallypoint.page.curves import curves
from rallypoint.page.nodes import nodes
from rallypoint.page.values import Fact, Fault, Line, LogPlace, Mood, Page, Span, Timeline
from rallypoint.supervision.hindsight import remembered
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import reconcile
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire.incident import FREE, Cause, Incident
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

__all__ = ["as_of", "keepsake", "page_of", "plain_page"]

#: Lines of the story, the newest.
_STORY = 200


def as_of(record: JobRecord, status: JobStatus | None) -> float:
    """Return of when the newest is that is known: the page counts up to here, so that it changes only when something does."""
    ended = record.attempts[-1].ended_at if record.attempts and record.finished else None
    if ended is not None:
        return ended
    return max(record.last_now, 0.0 if status is None else status.updated_at)


def page_of(
    record: JobRecord,
    status: JobStatus | None,
    *,
    now: float,
    plan: Plan | None = None,
    site: Site | None = None,
    tries: Mapping[str, int] | None = None,
    label: str = "",
    status_age: float | None = None,
) -> Page:
    """Return the page of a job.

    Args:
        record: what its supervisor remembers.
        status: the coordinator's last word; one of an earlier attempt, or of an earlier job of the name, is left out.
        now: seconds since the epoch up to which what goes on is counted; `as_of` tells it.
        plan: what runs; without it nobody knows which clocks run.
        site: where the job is, for the commands that read its logs.
        tries: numbers of the task's tries, by the owner that each was.
        label: the place, in words.
        status_age: seconds since the coordinator's last word; None where that is not known.
    """
    mine = status if status is not None and (status.uid, status.fence.attempt) == (record.uid, record.attempt) else None
    incidents = incidents_of(record, mine)
    told = words.headline(record, mine, incidents, silence(mine, status_age))
    work = spans.work(record, mine, incidents, until=now)
    return Page(
        state=told.state,
        mood=told.mood,
        title=told.title,
        advice=told.advice,
        live=told.live,
        as_of=now,
        job=record.name,
        place=label,
        facts=tuple(_facts(record, mine, incidents)),
        timeline=_timeline(record, mine, work, tries or {}, now),
        faults=tuple(_fault(number, i, record) for number, i in enumerate(incidents, start=1)),
        nodes=tuple(nodes(mine, incidents)),
        curves=curves(mine),
        goodput=spans.goodput(work),
        coming=tuple(_coming(record, plan, now)),
        story=tuple(_story(record, mine, tries or {}, now)),
        logs=tuple(_logs(record, mine, incidents, site)),
        details=tuple(_details(record, mine, tries or {})),
    )


def _timeline(
    record: JobRecord, status: JobStatus | None, work: tuple[Span, ...], tries: Mapping[str, int], now: float
) -> Timeline:
    return Timeline(
        start=record.created_at,
        end=max(now, record.created_at),
        phases=spans.phases(record),
        attempts=spans.attempts(record, tries),
        rounds=spans.rounds(record, status),
        work=work,
    )


def plain_page(told: words.Headline, *, job: str = "", now: float = 0.0) -> Page:
    """Return a page that has nothing to show but a sentence."""
    return Page(state=told.state, mood=told.mood, title=told.title, advice=told.advice, live=told.live, as_of=now, job=job)


def keepsake(page: Page, *, live: bool = False) -> Page:
    """Return the page as a task publishes it: without anything that a script wrote to its log.

    `live`: a newer one will follow; otherwise it is for when the job is gone.
    """
    faults = tuple(dataclasses.replace(fault, tail=()) for fault in page.faults[-_STORY:])
    return dataclasses.replace(
        page,
        live=live,
        kept=not live,
        coming=page.coming if live else (),
        faults=faults,
        story=page.story[-50:],
        nodes=page.nodes[:64],
    )


# --- Figures ---------------------------------------------------------------------------------------------------------------


def _facts(record: JobRecord, status: JobStatus | None, incidents: Sequence[Incident]) -> Iterator[Fact]:
    progress = latest_progress(record, status)
    faults = count_faults(record, status)
    healed = sum(1 for i in incidents if is_fault(i) and i.healed_at is not None)
    lost = sum(i.steps_lost or 0 for i in incidents)
    yield Fact(
        label="Step",
        text="-" if progress.step is None else f"{progress.step:,}",
        note="not reported by the script" if progress.step is None else metrics_text(progress),
    )
    if status is not None and status.world:
        size, noun = words.counted(status.world_size, "rank").split()
        yield Fact(label="World", text=size, note=f"{noun} on {words.counted(len(status.world), 'node')}")
        yield Fact(label="Round", text=str(status.fence.round), note=f"of attempt {record.attempt}")
    else:
        yield Fact(
            label="Attempt", text=str(record.attempt) if record.attempt else "-", note=words.counted(record.retries, "reset")
        )
    yield Fact(label="Faults", text=str(faults), note=f"{healed} healed" if faults else "none yet")
    yield Fact(label="Steps lost", text=f"{lost:,}", note="repeated")


def _details(record: JobRecord, status: JobStatus | None, tries: Mapping[str, int]) -> Iterator[Fact]:
    progress = latest_progress(record, status)
    if progress.checkpoint:
        yield Fact(label="Checkpoint", text=progress.checkpoint)
    if progress.resumed_from is not None:
        yield Fact(label="Resumed from", text=f"step {progress.resumed_from:,}")
    if record.verdict is not None:
        yield Fact(label="Verdict", text=f"{record.verdict.reason}: {record.verdict.message}")
    if record.attempts:
        yield Fact(label="Attempts", text=f"{record.attempt}, of them {record.retries} after a reset")
    owner = f"try {tries[record.owner]} of this task" if record.owner in tries else record.owner
    yield Fact(label="Owner", text=owner)
    if record.holder is not None:
        yield Fact(label="Supervisor", text=_holder(record.holder, tries))


def _holder(holder: Holder, tries: Mapping[str, int]) -> str:
    return _with_tries(describe_holder(holder), tries).replace("airflow task try", "try")


# --- Faults ----------------------------------------------------------------------------------------------------------------


_CAUSES = {
    Cause.PROCESS: "Worker failed",
    Cause.NODE: "Node lost",
    Cause.HANG: "Hang",
    Cause.RENDEZVOUS: "Nodes did not join",
    Cause.COORDINATOR: "Coordinator lost",
    Cause.JOB: "Job reset",
    Cause.SCALE: "Resized",
    Cause.PREEMPTION: "Preempted",
    Cause.EVACUATION: "Bad host left",
}


def _fault(number: int, incident: Incident, record: JobRecord) -> Fault:
    culprit = incident.culprit
    judged, done = explain_incident.judgement(incident), explain_incident.done(incident)
    return Fault(
        number=number,
        at=incident.detected_at,
        healed_at=incident.healed_at,
        recovered=recovered_text(incident) if incident.healed_at is not None else "",
        title=incident.reason,
        cause=_CAUSES[incident.cause],
        mood=_fault_mood(incident, record),
        where="" if culprit is None else describe_who(culprit),
        host="" if culprit is None else culprit.host,
        node=incident.id.node if culprit is None else culprit.node,
        rank=-1 if culprit is None else culprit.rank,
        ended="" if culprit is None else describe_end(culprit),
        said="" if culprit is None else culprit.error,
        judged=judged,
        rung=incident.rung.value,
        done=done,
        steps_lost=incident.steps_lost,
        attempt=incident.id.attempt,
        round=incident.id.round,
        tail=() if culprit is None else tuple(line.rstrip() for line in culprit.log_tail),
        evidence=tuple(_evidence(incident)),
        log="" if culprit is None else culprit.log_path,
    )


def _evidence(incident: Incident) -> Iterator[str]:
    """Yield where ranks stood, a line for each group, its frames indented below."""
    for group in incident.evidence:
        head, *frames = evidence_lines((group,))
        yield head.strip().removeprefix("stood").strip()
        yield from (f"    {frame.strip()}" for frame in frames)


def _fault_mood(incident: Incident, record: JobRecord) -> Mood:
    if incident.healed_at is not None or incident.cause is Cause.COORDINATOR:
        return Mood.GOOD
    if incident.cause in FREE or incident.id.attempt < record.attempt:
        return Mood.QUIET
    return Mood.BAD if record.finished else Mood.BUSY


# --- Story and logs --------------------------------------------------------------------------------------------------------


def _story(record: JobRecord, status: JobStatus | None, tries: Mapping[str, int], now: float) -> Iterator[Line]:
    told = explain.account(record, None, now=now, status=status).story
    lines = [Line(at=entry.at, text=entry.text, fault=entry.incident) for entry in told]
    events = () if status is None else status.events
    known = {line.text for line in lines}
    lines.extend(Line(at=e.at, text=e.detail) for e in events if e.detail not in known)
    for line in sorted(lines, key=lambda line: line.at)[-_STORY:]:
        yield dataclasses.replace(line, text=_with_tries(line.text, tries))


def _coming(record: JobRecord, plan: Plan | None, now: float) -> Iterator[Line]:
    """Yield what a supervisor does when which clock is over, as far as the record knows."""
    if plan is None or record.finished or record.deletion:
        return
    policy = Policy.from_plan(plan)
    decision = reconcile(record, remembered(record, policy), policy, record.last_now)
    for item in explain.account(record, decision, now=now).coming:
        setting = f" ({item.setting})" if item.setting else ""
        yield Line(at=item.at, text=f"{item.then}{setting}")


def _with_tries(text: str, tries: Mapping[str, int]) -> str:
    """Return the text with tries of this task in the place of ids that nobody knows by heart."""
    for owner, number in tries.items():
        text = text.replace(owner, f"try {number} of this task")
    return text


def _logs(record: JobRecord, status: JobStatus | None, incidents: Iterable[Incident], site: Site | None) -> Iterator[LogPlace]:
    base = "" if site is None else " ".join(("rallypoint", "logs", record.name, *site.options()))
    seen: set[int] = set()
    newest = sorted((i for i in incidents if i.culprit is not None), key=lambda i: -i.detected_at)
    for culprit in (i.culprit for i in newest):
        if culprit is not None and culprit.rank >= 0 and culprit.rank not in seen and len(seen) < 8:
            seen.add(culprit.rank)
            command = f"{base} --rank {culprit.rank}" if base else ""
            yield LogPlace(rank=culprit.rank, label=f"{describe_who(culprit)}", path=culprit.log_path, command=command)
    if status is not None and status.world and 0 not in seen:
        yield LogPlace(rank=0, label="rank 0", command=f"{base} --rank 0" if base else "")
