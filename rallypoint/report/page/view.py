"""Render the report of a job as the page of the tab. Pure: the same job gives the same page."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rallypoint.backends.site import Site
from rallypoint.report import timeline
from rallypoint.report.format import counted, describe_end, describe_who, metrics_text
from rallypoint.report.hang import evidence_lines
from rallypoint.report.incidents import ListedIncident, action_name, done, judgement, recovered_text
from rallypoint.report.model import Headline, Mood, Span, Story, Timeline
from rallypoint.report.page.values import Curve, Fact, Fault, Line, LogPlace, NodeRow, Page, Point, RankCell, RolePart
from rallypoint.report.story import story_of
from rallypoint.supervision.hindsight import remembered
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import Decision, reconcile
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.supervision.trimming import NAME_LIMIT, trim_incident
from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.incident import FREE, Cause, Incident
from rallypoint.wire.plan import Plan
from rallypoint.wire.sanitize import clean_text
from rallypoint.wire.status import Event, JobStatus, Member, RankStatus, Sample

__all__ = [
    "RANKS",
    "as_of",
    "curves",
    "elastic_facts",
    "fault_of",
    "faults_shown",
    "keepsake",
    "nodes",
    "nodes_and_curves",
    "page_of",
    "plain_page",
]


#: Metrics that have a curve, and samples of a curve, the newest. The coordinator keeps 3 metrics of a sample, and 96 samples.
_CURVES, _SAMPLES = 16, 128


def curves(status: JobStatus | None) -> tuple[Curve, ...]:
    """Return the curves of the current attempt; without steps, only the curve of the world size."""
    if status is None or not status.samples:
        return ()
    samples = status.samples[-_SAMPLES:]
    steps = [sample for sample in samples if sample.step is not None]
    return (*_of_steps(steps), *_of_metrics(steps), _of_world(samples))


def _of_steps(steps: Sequence[Sample]) -> Iterator[Curve]:
    if len(steps) < 2:
        return
    yield _curve("Step", steps, lambda sample: sample.step, "{:.0f}")
    rates = [(later, _rate(earlier, later)) for earlier, later in itertools.pairwise(steps)]
    last = next((rate for _, rate in reversed(rates) if rate is not None), None)
    yield Curve(
        name="Steps per second",
        unit="/s",
        points=tuple(Point(at=sample.at, value=rate) for sample, rate in rates),
        last="" if last is None else f"{last:.3g}",
    )


def _rate(earlier: Sample, later: Sample) -> float | None:
    """Return steps per second between two samples; None across rounds."""
    forward = (later.step or 0) - (earlier.step or 0)
    if later.round != earlier.round or later.at <= earlier.at or forward < 0:
        return None
    return float(f"{forward / (later.at - earlier.at):.6g}")


def _of_metrics(steps: Sequence[Sample]) -> Iterator[Curve]:
    measured: dict[str, list[Sample]] = {}
    for sample in steps:
        for name in sample.metrics:
            if name in measured or len(measured) < _CURVES:
                measured.setdefault(name, []).append(sample)
    for name, samples in measured.items():
        yield _curve(name, samples, functools.partial(_metric, name), "{:.4g}")


def _metric(name: str, sample: Sample) -> float:
    return sample.metrics[name]


def _of_world(samples: Sequence[Sample]) -> Curve:
    points = [Point(at=sample.at, value=float(sample.world_size)) for sample in samples]
    kept = [p for place, p in enumerate(points) if place in {0, len(points) - 1} or p.value != points[place - 1].value]
    return Curve(name="World size", unit="ranks", points=tuple(kept), last=str(samples[-1].world_size), stepped=True)


def _curve(name: str, samples: Sequence[Sample], value: Callable[[Sample], float | None], spelled: str) -> Curve:
    """Return a curve with a gap at the end of each round, so that lost steps are not drawn as a slope."""
    points: list[Point] = []
    for place, sample in enumerate(samples):
        if place and sample.round != samples[place - 1].round:
            points.append(Point(at=sample.at, value=None))
        points.append(Point(at=sample.at, value=_finite(value(sample))))
    # The last one is shown as it was reported, also where no curve can be drawn through it.
    known = [number for number in map(value, samples) if number is not None]
    return Curve(name=name, unit="", points=tuple(points), last=spelled.format(known[-1]) if known else "")


def _finite(value: float | None) -> float | None:
    """Return the number; None for numbers that JSON does not have."""
    return float(value) if value is not None and math.isfinite(value) else None


#: Maximum number of ranks that are shown one by one; larger rounds are shown by node.
RANKS = 4096

#: Seconds and steps that a rank may be behind, because agents report at different times.
_SLACK, _SLACK_STEPS = 10.0, 2


def nodes(status: JobStatus | None, incidents: Iterable[ListedIncident]) -> Iterator[NodeRow]:
    """Yield the nodes of the round, then the waiting nodes; none without a recent status."""
    if status is None:
        return
    of_rank, of_node = Counter[int](), Counter[int]()
    for listed in incidents:
        if listed.fault:
            of_rank[listed.rank] += listed.count
            of_node[listed.node] += listed.count
    few = status.world_size <= RANKS
    furthest, slack = max((w.step for w in status.ranks if w.step is not None), default=0), _slack(status)
    steps = {worker.rank: worker for worker in status.ranks}
    present = sorted(steps)
    for member in status.world:
        ranks = range(member.first_rank, member.first_rank + member.local_world_size)
        cells = tuple(
            RankCell(
                rank=rank,
                step=steps[rank].step if rank in steps else None,
                behind=_behind(steps.get(rank), furthest, slack),
                pid=steps[rank].pid if rank in steps else 0,
                faults=_limited(of_rank[rank]),
            )
            for rank in (ranks if few else ())
        )
        first = bisect.bisect_left(present, ranks.start)
        state, mood = _node_state(member, first < len(present) and present[first] in ranks, status)
        yield NodeRow(
            node=member.node,
            host=clean_text(member.host, NAME_LIMIT),
            incarnation=member.incarnation,
            state=state,
            mood=mood,
            ranks=cells,
            faults=_limited(of_node[member.node]),
        )
    for member in status.waiting:
        yield NodeRow(
            node=member.node,
            host=clean_text(member.host, NAME_LIMIT),
            incarnation=member.incarnation,
            state="waiting for a round",
            mood=Mood.BUSY,
        )


def _slack(status: JobStatus) -> int:
    """Return how many steps a rank may be behind before that is worth a word."""
    pace = timeline.seconds_per_step(status)
    steps = _SLACK / pace if pace else 0.0
    return max(_SLACK_STEPS, round(steps)) if math.isfinite(steps) else _SLACK_STEPS


def _behind(worker: RankStatus | None, furthest: int, slack: int) -> int:
    if worker is None or worker.step is None:
        return 0
    return _limited(furthest - worker.step) if furthest - worker.step > slack else 0


def _limited(number: int) -> int:
    """Return a number that a reader of the page accepts; the sum of two numbers of a job may be larger."""
    return max(WHOLE[0], min(number, WHOLE[1]))


def _node_state(member: Member, heard: bool, status: JobStatus) -> tuple[str, Mood]:  # noqa: FBT001  one of two
    if member.done:
        return "done", Mood.GOOD
    if status.verdict is not None:
        return "ended", Mood.QUIET
    return ("trains", Mood.GOOD) if heard else ("no report in this round", Mood.BUSY)


#: Lines of the story, incidents and spans of a lane of the timeline, the newest; incidents of one role that a task publishes.
_STORY, _FAULTS, _LANE, _KEPT_FAULTS = 200, 200, 500, 20

#: Characters of one text: a supervisor and a coordinator write less, but a script can write the files of its job.
_TEXT = 2000


def as_of(record: JobRecord, status: JobStatus | None) -> float:
    """Return the time of the newest data: ages on the page end here, so the page changes only with its data."""
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
    """Return the page of a job of one role.

    Args:
        record: of the supervisor.
        status: the coordinator's last status; a status of another attempt or job is ignored.
        now: seconds since the epoch up to which what goes on is counted; `as_of` tells it.
        plan: of the job; without it, the running clocks are unknown.
        site: where the job is, for the commands that read its logs.
        tries: numbers of the task's tries, by the owner that each was.
        label: description of the place.
        status_age: seconds since the coordinator's last status; None if unknown.
    """
    decision = _decision(record, plan)
    tries = tries or {}
    story = story_of(record, status, now=now, plan=plan, decision=decision, status_age=status_age, tries=tries)
    return Page(
        state=story.headline.state,
        mood=story.headline.mood,
        title=clean_text(story.headline.title, _TEXT),
        advice=clean_text(story.headline.advice, _TEXT),
        live=story.headline.live,
        as_of=now,
        job=record.name,
        place=label,
        facts=tuple(_facts(story)),
        timeline=_few_spans(story.timeline),
        faults=faults_shown(story),
        nodes=tuple(nodes(story.status, story.incidents)),
        curves=curves(story.status),
        goodput=story.goodput,
        coming=tuple(_coming(story)),
        story=tuple(_lines(story, tries)),
        logs=tuple(_logs(story, site)),
        details=tuple(dataclasses.replace(one, text=clean_text(one.text, _TEXT)) for one in _details(story, tries)),
    )


def faults_shown(story: Story, most: int = _FAULTS) -> tuple[Fault, ...]:
    """Return the newest incidents of a story, at most `most`, with the numbers that they have among all."""
    begin = max(0, len(story.details) - most)
    return tuple(fault_of(number, i, story.record) for number, i in enumerate(story.details[begin:], start=begin + 1))


def _few_spans(timeline: Timeline) -> Timeline:
    """Return the timeline with lanes and texts that are no longer than those of a job whose files no script has written."""
    return dataclasses.replace(
        timeline, phases=_lane(timeline.phases), attempts=_lane(timeline.attempts), rounds=_lane(timeline.rounds)
    )


def _lane(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    return tuple(dataclasses.replace(span, note=clean_text(span.note, _TEXT)) for span in spans[-_LANE:])


def _decision(record: JobRecord, plan: Plan | None) -> Decision | None:
    """Return what a supervisor turn would decide, as far as the record knows; None where no clock runs or none is known."""
    if plan is None or record.finished or record.deletion:
        return None
    policy = Policy.from_plan(plan)
    return reconcile(record, remembered(record, policy), policy, record.last_now)


def plain_page(headline: Headline, *, job: str = "", now: float = 0.0) -> Page:
    """Return a page that contains only a sentence."""
    return Page(
        state=headline.state,
        mood=headline.mood,
        title=headline.title,
        advice=headline.advice,
        live=headline.live,
        as_of=now,
        job=job,
    )


def keepsake(page: Page, *, live: bool = False) -> Page:
    """Return the page for publication by a task, without log lines of the script.

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
        roles=tuple(_kept(role) for role in page.roles),
    )


def _kept(role: RolePart) -> RolePart:
    faults = tuple(dataclasses.replace(fault, tail=()) for fault in role.faults[-_KEPT_FAULTS:])
    return dataclasses.replace(role, faults=faults, nodes=role.nodes[:16])


# --- Figures ---------------------------------------------------------------------------------------------------------------


def elastic_facts(story: Story) -> tuple[Fact, ...]:
    """Return the figures of a job of one role, or of an elastic role."""
    return tuple(_facts(story))


def nodes_and_curves(story: Story) -> tuple[tuple[NodeRow, ...], tuple[Curve, ...]]:
    """Return the nodes and the curves of the same."""
    return tuple(nodes(story.status, story.incidents)), curves(story.status)


def _facts(story: Story) -> Iterator[Fact]:
    record, status, progress, loss = story.record, story.status, story.progress, story.loss
    yield Fact(
        label="Step",
        text="-" if progress.step is None else f"{progress.step:,}",
        note="not reported by the script" if progress.step is None else metrics_text(progress),
    )
    if status is not None and status.world:
        size, noun = counted(status.world_size, "rank").split()
        yield Fact(label="World", text=size, note=f"{noun} on {counted(len(status.world), 'node')}")
        yield Fact(label="Round", text=str(status.fence.round), note=f"of attempt {record.attempt}")
    else:
        yield Fact(label="Attempt", text=str(record.attempt) if record.attempt else "-", note=counted(record.retries, "reset"))
    yield Fact(label="Faults", text=str(loss.faults), note=f"{loss.healed} recovered" if loss.faults else "none yet")
    yield Fact(label="Steps lost", text=f"{loss.steps:,}", note="repeated")


def _details(story: Story, tries: Mapping[str, int]) -> Iterator[Fact]:
    record, progress = story.record, story.progress
    if progress.checkpoint:
        yield Fact(label="Checkpoint", text=progress.checkpoint)
    if progress.resumed_from is not None:
        yield Fact(label="Resumed from", text=f"step {progress.resumed_from:,}")
    if record.verdict is not None:
        yield Fact(label="Verdict", text=f"{record.verdict.reason}: {record.verdict.message}")
    if record.attempts:
        yield Fact(label="Attempts", text=f"{record.attempt} ({counted(record.retries, 'reset')})")
    owner = f"try {tries[record.owner]} of this task" if record.owner in tries else record.owner
    yield Fact(label="Owner", text=owner)
    if record.holder is not None:
        yield Fact(label="Supervisor", text=_holder(record.holder, tries))


def _holder(holder: Holder, tries: Mapping[str, int]) -> str:
    return _with_tries(holder.describe(), tries).replace("airflow task try", "try")


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


def fault_of(number: int, incident: Incident, record: JobRecord) -> Fault:
    """Return an incident in the form of the page, with texts of the size that a record allows."""
    incident = trim_incident(incident, whole=True)
    culprit = incident.culprit
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
        judged=judgement(incident),
        rung=action_name(incident),
        done=done(incident),
        steps_lost=None if incident.steps_lost is None else _limited(incident.steps_lost),
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


def _event_text(event: Event) -> str:
    """Return `KIND: DETAIL`, or the detail alone where it starts with the kind."""
    return event.detail if event.detail.startswith(event.kind) else f"{event.kind}: {event.detail}"


def _lines(story: Story, tries: Mapping[str, int]) -> Iterator[Line]:
    lines = [Line(at=entry.at, text=entry.text, fault=entry.incident) for entry in story.entries]
    events = () if story.status is None else story.status.events
    known = {line.text for line in lines}
    lines.extend(Line(at=e.at, text=_event_text(e)) for e in events if e.detail not in known)
    for line in sorted(lines, key=lambda line: line.at)[-_STORY:]:
        yield dataclasses.replace(line, text=_with_tries(clean_text(line.text, _TEXT), tries))


def _coming(story: Story) -> Iterator[Line]:
    for deadline in story.deadlines:
        setting = f" ({deadline.setting})" if deadline.setting else ""
        yield Line(at=deadline.at, text=f"{deadline.then}{setting}")


def _with_tries(text: str, tries: Mapping[str, int]) -> str:
    """Return the text with `try N of this task` instead of the ids of tries."""
    for owner, number in tries.items():
        text = text.replace(owner, f"try {number} of this task")
    return text


def _logs(story: Story, site: Site | None) -> Iterator[LogPlace]:
    record, status, incidents = story.record, story.status, story.details
    base = "" if site is None else " ".join(("rallypoint", "logs", record.name, *site.options()))
    seen: set[int] = set()
    newest = sorted((i for i in incidents if i.culprit is not None), key=lambda i: -i.detected_at)
    for culprit in (i.culprit for i in newest):
        if culprit is not None and culprit.rank >= 0 and culprit.rank not in seen and len(seen) < 8:
            seen.add(culprit.rank)
            command = f"{base} --rank {culprit.rank}" if base else ""
            path, label = clean_text(culprit.log_path, _TEXT), clean_text(describe_who(culprit), NAME_LIMIT)
            yield LogPlace(rank=culprit.rank, label=label, path=path, command=command)
    if status is not None and status.world and 0 not in seen:
        yield LogPlace(rank=0, label="rank 0", command=f"{base} --rank 0" if base else "")
