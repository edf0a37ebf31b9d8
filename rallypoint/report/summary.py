"""The summary of a finished job that a task returns: plain JSON values, small enough for XCom. Pure."""

from __future__ import annotations

from typing import Any

from rallypoint.report.incidents import to_xcom
from rallypoint.report.model import Story
from rallypoint.report.roles import RoleStory, faults_of
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import sanitize

__all__ = ["XCOM_KEYS", "summarize", "xcoms"]

#: Keys that are pushed beside the return value, and their fields of the summary.
XCOM_KEYS = {
    "attempts": "attempts",
    "incidents": "incidents",
    "faults": "faults",
    "final_step": "step",
    "metrics": "metrics",
    "checkpoint": "checkpoint",
    "roles": "roles",
}


def summarize(story: Story, roles: tuple[RoleStory, ...] = ()) -> dict[str, Any]:
    """Return the summary that a task returns, cleaned for XCom (docs/reference/payloads.md).

    Keys:
        job, uid, phase: of the job.
        attempts: attempts of the whole job, over all of its owners.
        incidents: incidents of all attempts, as a list (`rallypoint.report.incidents`).
        faults: how many of these are faults; scaling, preemption, evacuation, a lost coordinator and resets are none.
        restarts: how many of them restarted workers.
        steps_lost: reported steps that were repeated, as far as known.
        step, metrics, checkpoint, resumed_from: last reports of the script; None, {} and "" if it reports nothing.
        world_size: ranks of the last round; 0 without a round, or if unknown.
        result: the return value of rank 0, or the value of `rallypoint.training.report_result`; else None.
        duration: seconds from the start of the first attempt to the end of the last.
        roles: only of a job with several roles: figures of each role by its name. `incidents` are those of the whole job; those
            of an elastic role are with the role. `faults` and `steps_lost` count all of them.
    """
    record, status, loss = story.record, story.status, story.loss
    progress = record.progress if record.finished or status is None else status.progress
    summary = {
        "job": record.name,
        "uid": record.uid,
        "phase": record.phase.value,
        "attempts": record.attempt,
        "incidents": to_xcom(story.incidents),
        "faults": loss.faults,
        "restarts": loss.restarts,
        "steps_lost": loss.steps,
        "step": progress.step,
        "metrics": dict(progress.metrics),
        "checkpoint": progress.checkpoint,
        "resumed_from": progress.resumed_from,
        "world_size": 0 if status is None else status.world_size,
        "result": record.result,
        "duration": _duration(record),
    }
    if roles:
        lost = sum(role.story.loss.steps for role in roles if role.story is not None)
        summary |= {"faults": faults_of(story, roles), "steps_lost": loss.steps + lost}
        summary["roles"] = {role.name: role.to_xcom() for role in roles}
    cleaned: dict[str, Any] = sanitize.clean(summary)
    return cleaned


def xcoms(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the XComs beside the return value, by key, without unknown values."""
    return {key: summary[field] for key, field in XCOM_KEYS.items() if summary.get(field) is not None}


def _duration(record: JobRecord) -> float:
    if not record.attempts:
        return 0.0
    first, last = record.attempts[0], record.attempts[-1]
    return round((record.last_now if last.ended_at is None else last.ended_at) - first.started_at, 3)
