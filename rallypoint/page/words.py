"""How a job is, in a word and a sentence, and what its reader should do. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from rallypoint.backends.incident_list import is_fault
from rallypoint.backends.story import culprit_of, describe_end, describe_who, span
from rallypoint.page.values import Mood, State
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.incident import Cause, FaultKind, Incident
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["Headline", "counted", "headline", "no_data", "no_job", "not_live", "unreachable"]


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The first thing that is read. `live`: what is told here will change by itself."""

    state: State
    mood: Mood
    title: str
    advice: str
    live: bool = False


#: What to do about the fault that ended a job.
_MEND = {
    FaultKind.APPLICATION_ERROR: "The script failed by itself: its last lines are below. Mend it, then clear the task.",
    FaultKind.EXIT_CODE: "The script ended by itself: its last lines are below. Mend it, then clear the task.",
    FaultKind.OOM: "It needed more memory than it may have: give it more (node_resources), or a smaller batch; then clear.",
    FaultKind.SIGNAL: "A signal ended it, and nobody knows who sent it: look at that host's kernel log, then clear the task.",
    FaultKind.HARDWARE: "Its accelerator or its host is broken: take that host out of service, then clear the task.",
    FaultKind.NODE_LOST: "Its node was lost: look at that host, then clear the task.",
    FaultKind.EVICTED: "Its host was short of something: raise the job's requests, or free that host; then clear the task.",
    FaultKind.PREEMPTED: "Something more important took its room: clear the task once there is room again.",
    FaultKind.FLAGGED: "Its host was flagged as bad: have it looked at, then clear the task.",
    FaultKind.DELETED: "Somebody deleted a pod of it from outside: find out who, then clear the task.",
    FaultKind.HANG: "It was alive and nothing went on: the stacks with the incident show where it waits. Then clear the task.",
    FaultKind.START_FAILED: "It cannot start: look at image, volume, secret and interpreter, then clear the task.",
    FaultKind.NO_PROGRESS: "Attempts come and go without a newer step: look at what the last lines have in common.",
}

_REASONS = {
    "RendezvousTimeout": "Too few nodes joined in time: look for room and quota, or lower the least number of nodes.",
    "Orphaned": "Nobody supervised it for its lease, so it saved and stopped: clear the task to go on from its checkpoint.",
}

_MEND_ELSE = "Read the last lines below; when the reason is mended, clear the task."


def headline(record: JobRecord, status: JobStatus | None, incidents: Sequence[Incident], quiet: str = "") -> Headline:
    """Return how a job is; `status` is the current attempt's, None where nothing is known of it.

    `quiet` tells since when nothing was heard of it, "" where that is lately.
    """
    faults = [i for i in incidents if is_fault(i)]
    if record.phase is Phase.FAILED:
        return _failed(record, faults)
    if record.phase is Phase.SUCCEEDED:
        return _succeeded(record, faults)
    if record.deletion or record.phase is Phase.TERMINATING:
        advice = "Somebody ended the task or deleted the job. Its checkpoints stay; clear the task to go on from the last one."
        return Headline(state=State.WAITING, mood=Mood.QUIET, title="Being deleted", advice=advice, live=True)
    if record.phase is Phase.RUNNING and status is not None and status.state is JobState.RUNNING:
        told = _training(record, status, incidents, faults)
        return _quiet(told, quiet) if quiet else told
    if record.phase is Phase.RESETTING or (record.phase in {Phase.RUNNING, Phase.RESUMING} and faults):
        return _mending(record, faults)
    return _waiting(record)


def _quiet(told: Headline, quiet: str) -> Headline:
    """Return a headline that says since when nothing was heard; what it says else is what was last known."""
    advice = f"{quiet[0].upper()}{quiet[1:]}; the rest of this page is as old. {told.advice}"
    return dataclasses.replace(told, mood=Mood.BUSY, title=f"{told.title}; {quiet}", advice=advice)


def _training(record: JobRecord, status: JobStatus, incidents: Sequence[Incident], faults: Sequence[Incident]) -> Headline:
    nodes, ranks = len(status.world), status.world_size
    where = f"on {counted(nodes, 'node')}, {counted(ranks, 'rank')}"
    if status.hang is not None:
        return _hanging(status.hang)
    broken = [i for i in incidents if i.healed_at is None and _present(i, record)]
    if broken:
        return _mending(record, broken)
    if not faults:
        return Headline(
            state=State.RUNNING,
            mood=Mood.GOOD,
            title=f"Training {where}",
            advice="Nothing to do: nothing has broken.",
            live=True,
        )
    return Headline(
        state=State.RECOVERED,
        mood=Mood.GOOD,
        title=f"Training {where}, recovered from {counted(len(faults), 'fault')}",
        advice=f"Nothing to do: it has gone on by itself.{_repeats(faults)}",
        live=True,
    )


def _mending(record: JobRecord, faults: Sequence[Incident]) -> Headline:
    last = max(faults, key=lambda i: i.detected_at, default=None)
    what = "" if last is None else f": {last.reason}"
    advice = "It is being mended; nothing to do yet. What was judged and is being done stands below, under Incidents."
    if record.phase is Phase.RESETTING:
        advice = "Everything is deleted, and the next attempt goes on from the last checkpoint. Nothing to do yet."
    return Headline(state=State.RECOVERING, mood=Mood.BUSY, title=f"Recovering{what}", advice=advice, live=True)


def _hanging(hang: Hang) -> Headline:
    if hang.state is HangState.DOUBT:
        title = f"In doubt: {hang.reason}" if hang.reason else "In doubt: no rank has shown a sign of life for long"
        advice = "It is watched, and nothing is done yet: a long evaluation or checkpoint looks like this, too."
    else:
        title = f"Hanging: {hang.reason}"
        advice = "Where each rank stood is below, under Incidents. The workers are restarted where health.hang_detection is 2."
    return Headline(state=State.RECOVERING, mood=Mood.BUSY, title=title, advice=advice, live=True)


def _succeeded(record: JobRecord, faults: Sequence[Incident]) -> Headline:
    took = _took(record)
    if not faults:
        return Headline(state=State.SUCCEEDED, mood=Mood.GOOD, title=f"Succeeded{took}", advice="Nothing to do.")
    title = f"Succeeded{took}, recovered from {counted(len(faults), 'fault')}"
    return Headline(
        state=State.RECOVERED, mood=Mood.GOOD, title=title, advice=f"Nothing to do: it went on by itself.{_repeats(faults)}"
    )


def _failed(record: JobRecord, faults: Sequence[Incident]) -> Headline:
    culprit, verdict = culprit_of(record), record.verdict
    reason = "" if verdict is None else verdict.reason
    kind = culprit.kind if culprit is not None else None
    kinds = [i.kind for i in sorted(faults, key=lambda i: i.detected_at) if i.kind is not None]
    kind = kind or (kinds[-1] if kinds else None)
    advice = _REASONS.get(reason) or (_MEND_ELSE if kind is None else _MEND[kind])
    if culprit is None:
        title = f"Failed{_took(record)}: {'' if verdict is None else verdict.message}".rstrip(": ")
    else:
        said = f": {culprit.error}" if culprit.error else ""
        title = f"Failed{_took(record)}: {describe_who(culprit)} ended by {describe_end(culprit)}{said}"
        title = title.replace("ended by lost", "was lost").replace("ended by exit ", "ended with exit code ")
    if record.progress.checkpoint:
        advice += f" It goes on from {record.progress.checkpoint}."
    return Headline(state=State.FAILED, mood=Mood.BAD, title=title, advice=advice)


def _waiting(record: JobRecord) -> Headline:
    title, advice = "Starting", "Its nodes are being started; nothing to do yet."
    if record.phase is Phase.SUSPENDED and record.suspend:
        title, advice = "Suspended", f"Somebody suspended it: `rallypoint resume {record.name}` lets it go on."
    elif record.phase is Phase.SUSPENDED:
        title, advice = "Waiting in the queue", "There is no quota for it yet; it starts by itself. No time-out runs meanwhile."
    elif record.phase is Phase.EMPTY:
        title, advice = (
            "Submitted",
            "It waits for a supervisor, which takes a moment. If it lasts, look at worker and triggerer.",
        )
    elif record.phase is Phase.SUSPENDING:
        title, advice = "Being suspended", "Its nodes are being ended; the checkpoint stays."
    elif record.phase is Phase.RUNNING:
        ready = record.condition(ConditionType.PODS_READY)
        title = "Waiting for its nodes to join" if ready else "Starting"
        advice = "Its nodes are there, and wait for one another; nothing to do yet."
    if record.waits_for:
        advice = f"It waits for {record.waits_for}"
    return Headline(state=State.WAITING, mood=Mood.BUSY, title=title, advice=advice, live=True)


def no_job() -> Headline:
    """Return what is said of a task that has no job."""
    return Headline(
        state=State.NO_DATA,
        mood=Mood.QUIET,
        title="No training job here",
        advice="This task has not submitted one. One with an ElasticTrainingOperator shows its job here once it has started.",
    )


def no_data(job: str) -> Headline:
    """Return what is said of a job that is gone, and of which the task has kept nothing."""
    return Headline(
        state=State.NO_DATA,
        mood=Mood.QUIET,
        title=f"Job {job} is gone",
        advice="It was deleted, or belongs to another task, and this task has kept nothing of it. See the task's log.",
    )


def not_live(job: str, why: str) -> Headline:
    """Return the headline for a job that the API server may not read, and of which the task has published nothing yet."""
    return Headline(
        state=State.NO_DATA,
        mood=Mood.QUIET,
        title=f"Job {job} has not been published yet",
        advice=f"The task publishes its state about once a minute while the job runs. {why}",
        live=True,
    )


def unreachable(job: str, why: str) -> Headline:
    """Return what is said of a job whose backend does not answer the API server."""
    return Headline(
        state=State.NO_DATA,
        mood=Mood.BUSY,
        title=f"Job {job} cannot be read from here",
        advice=f"The training is not touched by that. The API server must reach the place where the job runs: {why}",
        live=True,
    )


def _present(incident: Incident, record: JobRecord) -> bool:
    return incident.id.attempt == record.attempt and incident.cause not in {Cause.COORDINATOR, Cause.JOB, Cause.SCALE}


def _repeats(faults: Sequence[Incident]) -> str:
    """Return a hint at the host that broke most, where one broke more than once."""
    hosts = [i.culprit.host for i in faults if i.culprit is not None and i.culprit.host]
    worst = max(dict.fromkeys(hosts), key=hosts.count, default="")
    times = hosts.count(worst)
    return f" Host {worst} had {times} of the faults: have it looked at." if times > 1 else ""


def _took(record: JobRecord) -> str:
    if not record.attempts:
        return ""
    ended = record.attempts[-1].ended_at
    return "" if ended is None else f" after {span(ended - record.attempts[0].started_at)}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun, as `1 node` and `2 nodes`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
