"""State of a job as a word and a sentence, with advice for the reader. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from rallypoint.report.endings import culprit_of
from rallypoint.report.format import counted, describe_end, describe_who, span
from rallypoint.report.incidents import is_fault
from rallypoint.report.model import Headline, Mood, State
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.incident import Cause, FaultKind, Incident
from rallypoint.wire.sections import value_of
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["headline", "no_data", "no_job", "not_live", "unreachable"]


#: Advice by kind of the fault that ended a job.
_MEND = {
    FaultKind.APPLICATION_ERROR: "The script failed: see its last lines below. Fix the script, then clear the task.",
    FaultKind.EXIT_CODE: "The script exited with an error: see its last lines below. Fix the script, then clear the task.",
    FaultKind.OOM: "A worker ran out of memory: increase node_resources or reduce the batch size, then clear the task.",
    FaultKind.SIGNAL: "A signal of unknown origin killed a worker: check the kernel log of its host, then clear the task.",
    FaultKind.HARDWARE: "An accelerator or its host is broken: remove the host from service, then clear the task.",
    FaultKind.NODE_LOST: "A node was lost: check its host, then clear the task.",
    FaultKind.EVICTED: "The host ran short of a resource: increase the job's requests or free the host, then clear the task.",
    FaultKind.PREEMPTED: "A pod with higher priority replaced it: clear the task when the cluster has free capacity.",
    FaultKind.FLAGGED: "Its host was flagged as bad: check the host, then clear the task.",
    FaultKind.DELETED: "A user or controller deleted one of its pods: check the cluster's audit log, then clear the task.",
    FaultKind.HANG: "The workers hung: the stacks under Incidents show where. Fix the cause, then clear the task.",
    FaultKind.START_FAILED: "A node cannot start: check the image, volumes, secrets and interpreter, then clear the task.",
    FaultKind.NO_PROGRESS: "Several attempts made no progress: compare the last lines of the attempts.",
}

_REASONS = {
    "RendezvousTimeout": "Too few nodes joined in time: check free capacity and quota, or lower the minimum number of nodes.",
    "Orphaned": (
        "The job had no supervisor until its lease expired, so it saved and stopped: clear the task to continue from "
        "its checkpoint."
    ),
}

_MEND_ELSE = "Read the last lines below, fix the cause, then clear the task."


def headline(
    record: JobRecord, status: JobStatus | None, incidents: Sequence[Incident], *, faults: int, quiet: str = ""
) -> Headline:
    """Return the headline of a job; `status` is that of the current attempt, or None.

    `faults` is their number, which may be larger than that of the `incidents` that are faults: old ones are kept as counts.
    `quiet` tells since when nothing was heard of it, "" where that is lately.
    """
    broken = [i for i in incidents if is_fault(i)]
    if record.phase is Phase.FAILED:
        return _failed(record, broken)
    if record.phase is Phase.SUCCEEDED:
        return _succeeded(record, broken, faults)
    if record.deletion or record.phase is Phase.TERMINATING:
        advice = (
            "A user stopped the task or deleted the job. Its checkpoints are kept; clear the task to continue from the "
            "last one."
        )
        return Headline(state=State.WAITING, mood=Mood.QUIET, title="Being deleted", advice=advice, live=True)
    if record.phase is Phase.RUNNING and status is not None and status.state is JobState.RUNNING:
        told = _training(record, status, incidents, faults)
        return _quiet(told, quiet) if quiet else told
    if record.phase is Phase.RESETTING or (record.phase in {Phase.RUNNING, Phase.RESUMING} and broken):
        return _mending(record, broken)
    return _waiting(record)


def _quiet(told: Headline, quiet: str) -> Headline:
    """Return a headline with the time of the last report."""
    advice = f"{quiet[0].upper()}{quiet[1:]}; the values on this page are from that time. {told.advice}"
    return dataclasses.replace(told, mood=Mood.BUSY, title=f"{told.title}; {quiet}", advice=advice)


def _training(record: JobRecord, status: JobStatus, incidents: Sequence[Incident], faults: int) -> Headline:
    nodes, ranks = len(status.world), status.world_size
    where = f"on {counted(nodes, 'node')}, {counted(ranks, 'rank')}"
    hang: Hang | None = value_of(status, "hang")
    if hang is not None:
        return _hanging(hang)
    broken = [i for i in incidents if i.healed_at is None and _present(i, record)]
    if broken:
        return _mending(record, broken)
    if not faults:
        return Headline(
            state=State.RUNNING,
            mood=Mood.GOOD,
            title=f"Training {where}",
            advice="No faults. No action needed.",
            live=True,
        )
    return Headline(
        state=State.RECOVERED,
        mood=Mood.GOOD,
        title=f"Training {where}, recovered from {counted(faults, 'fault')}",
        advice=f"Training continued without intervention. No action needed.{_repeats([i for i in incidents if is_fault(i)])}",
        live=True,
    )


def _mending(record: JobRecord, faults: Sequence[Incident]) -> Headline:
    last = max(faults, key=lambda i: i.detected_at, default=None)
    what = "" if last is None else f": {last.reason}"
    advice = "Recovery is running; no action needed yet. See Incidents below for the diagnosis and the action taken."
    if record.phase is Phase.RESETTING:
        advice = "All nodes are being deleted; the next attempt continues from the last checkpoint. No action needed yet."
    return Headline(state=State.RECOVERING, mood=Mood.BUSY, title=f"Recovering{what}", advice=advice, live=True)


def _hanging(hang: Hang) -> Headline:
    if hang.state is HangState.DOUBT:
        title = f"Hang suspected: {hang.reason}" if hang.reason else "Hang suspected: no rank has made progress for a long time"
        advice = "Monitoring only; no action taken yet, because a long evaluation or checkpoint looks the same."
    else:
        title = f"Hanging: {hang.reason}"
        advice = "See Incidents below for the position of each rank. Workers are restarted only with health.hang_detection 2."
    return Headline(state=State.RECOVERING, mood=Mood.BUSY, title=title, advice=advice, live=True)


def _succeeded(record: JobRecord, broken: Sequence[Incident], faults: int) -> Headline:
    took = _took(record)
    if not faults:
        return Headline(state=State.SUCCEEDED, mood=Mood.GOOD, title=f"Succeeded{took}", advice="No action needed.")
    title = f"Succeeded{took}, recovered from {counted(faults, 'fault')}"
    return Headline(
        state=State.RECOVERED,
        mood=Mood.GOOD,
        title=title,
        advice=f"Training continued without intervention. No action needed.{_repeats(broken)}",
    )


def _failed(record: JobRecord, faults: Sequence[Incident]) -> Headline:
    culprit, verdict = culprit_of(record), record.verdict
    reason = "" if verdict is None else verdict.reason
    kind = culprit.kind if culprit is not None else None
    kinds = [i.kind for i in sorted(faults, key=lambda i: i.detected_at) if i.kind is not None]
    kind = kind or (kinds[-1] if kinds else None)
    advice = _REASONS.get(reason) or (_MEND_ELSE if kind is None else _MEND[kind])
    if culprit is None or (record.conductor is not None and verdict is not None):
        title = f"Failed{_took(record)}: {'' if verdict is None else verdict.message}".rstrip(": ")
    else:
        said = f": {culprit.error}" if culprit.error else ""
        title = f"Failed{_took(record)}: {describe_who(culprit)} ended by {describe_end(culprit)}{said}"
        title = title.replace("ended by lost", "was lost").replace("ended by exit ", "exited with code ")
    if record.progress.checkpoint:
        advice += f" The next attempt continues from {record.progress.checkpoint}."
    return Headline(state=State.FAILED, mood=Mood.BAD, title=title, advice=advice)


def _waiting(record: JobRecord) -> Headline:
    title, advice = "Starting", "Its nodes are starting; no action needed yet."
    if record.phase is Phase.SUSPENDED and record.suspend:
        title, advice = "Suspended", f"A user suspended it: `rallypoint resume {record.name}` resumes it."
    elif record.phase is Phase.SUSPENDED:
        title, advice = (
            "Waiting in the queue",
            "The queue has no free quota; the job starts automatically. No time limit runs while it waits.",
        )
    elif record.phase is Phase.EMPTY:
        title, advice = (
            "Submitted",
            "Waiting for a supervisor, which takes a moment. If this persists, check the worker and the triggerer.",
        )
    elif record.phase is Phase.SUSPENDING:
        title, advice = "Being suspended", "Its nodes are being stopped; the checkpoint is kept."
    elif record.phase is Phase.RUNNING:
        ready = record.condition(ConditionType.PODS_READY)
        title = "Waiting for its nodes to join" if ready else "Starting"
        advice = "Its nodes have started and wait for one another; no action needed yet."
    if record.waits_for:
        advice = f"Waiting for {record.waits_for}"
    return Headline(state=State.WAITING, mood=Mood.BUSY, title=title, advice=advice, live=True)


def no_job() -> Headline:
    """Return the headline for a task without a job."""
    return _no_data(
        "No training job here",
        "This task has not submitted a job. A task with an ElasticTrainingOperator shows its job here once it has started.",
    )


def no_data(job: str) -> Headline:
    """Return the headline for a deleted job of which the task has stored no data."""
    return _no_data(
        f"Job {job} no longer exists",
        "It was deleted or belongs to another task, and this task has stored no data about it. See the task's log.",
    )


def not_live(job: str, why: str) -> Headline:
    """Return the headline for a job that the API server may not read, and of which the task has published nothing yet."""
    return _no_data(
        f"Job {job} has not been published yet",
        f"The task publishes its state about once a minute while the job runs. {why}",
        live=True,
    )


def unreachable(job: str, why: str) -> Headline:
    """Return the headline for a job whose backend does not answer the API server."""
    return _no_data(
        f"Cannot read job {job}",
        f"Training is not affected. The API server must be able to reach the backend of the job: {why}",
        mood=Mood.BUSY,
        live=True,
    )


def _no_data(title: str, advice: str, *, mood: Mood = Mood.QUIET, live: bool = False) -> Headline:
    return Headline(state=State.NO_DATA, mood=mood, title=title, advice=advice, live=live)


def _present(incident: Incident, record: JobRecord) -> bool:
    return incident.id.attempt == record.attempt and incident.cause not in {Cause.COORDINATOR, Cause.JOB, Cause.SCALE}


def _repeats(faults: Sequence[Incident]) -> str:
    """Return a hint about the host with the most faults, if it had more than one."""
    hosts = Counter(i.culprit.host for i in faults if i.culprit is not None and i.culprit.host)
    worst, times = max(hosts.items(), key=lambda item: item[1], default=("", 0))
    return f" Host {worst} had {times} of the faults: check it." if times > 1 else ""


def _took(record: JobRecord) -> str:
    if not record.attempts:
        return ""
    ended = record.attempts[-1].ended_at
    return "" if ended is None else f" after {span(ended - record.attempts[0].started_at)}"
