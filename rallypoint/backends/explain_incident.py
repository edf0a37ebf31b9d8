"""One incident in words: what it was, by which rule it was judged, what was done about it and what it has cost. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from rallypoint.backends.explain_hang import hang_lines
from rallypoint.backends.recovered import recovered_text
from rallypoint.backends.story import describe_who
from rallypoint.wire.incident import FREE, Cause, Culprit, FaultKind, Incident, Rung

__all__ = ["done", "incident_lines", "judgement", "time_of_day"]


def judgement(incident: Incident) -> str:
    """Return what an incident was, what that asks for, by which rule, and who pays for it."""
    what = incident.kind.value if incident.kind is not None else f"a fault of cause {incident.cause.value}"
    answer = f" -> {incident.answer.value}" if incident.answer is not None else ""
    rule = f" (by {incident.rule})" if incident.rule else ""
    free = incident.cause in FREE or incident.rung is Rung.NOTIFY
    paid_by = "reset" if (incident.cause, incident.rung) == (Cause.NODE, Rung.RESET) else _BUDGETS.get(incident.cause, "")
    budget = "; not charged to a budget" if free else f"; charged to the {paid_by} budget"
    if incident.refilled:
        budget = "; the budget was refilled since"
    return f"{what}{answer}{rule}{budget}"


_BUDGETS = {
    Cause.PROCESS: "process",
    Cause.NODE: "node",
    Cause.HANG: "hang",
    Cause.RENDEZVOUS: "process",
    Cause.JOB: "reset",
}


_RUNGS = {
    Rung.NOTIFY: "reported only; no action taken",
    Rung.RETRY: "the step was repeated",
    Rung.RECOVER_IN_PLACE: "the worker was replaced on its node",
    Rung.RESTART_WORKERS: "the workers of all nodes were restarted",
    Rung.RECOVER: "the node is replaced",
    Rung.ELASTIC_TRAINING: "the job continued without the node",
    Rung.RESET: "the job was reset: all nodes deleted and created again",
    Rung.DUMP: "a last checkpoint was saved",
    Rung.EXIT: "the job ended",
}


def done(incident: Incident) -> str:
    """Return what was done about an incident, by which rung, and what it has cost."""
    parts = [f"{incident.rung.value} ({_RUNGS[incident.rung]})"]
    if recovered_text(incident):
        parts.append(recovered_text(incident))
    if incident.steps_lost is not None:
        parts.append(f"{incident.steps_lost} steps repeated (from {incident.resumed_step} to {incident.last_step})")
    return ", ".join(parts)


def incident_lines(
    incident: Incident, number: int, *, zone: datetime.tzinfo | None = None, plain: bool = False
) -> Iterator[str]:
    """Yield everything that is known of one incident; `plain` draws with ASCII alone."""
    yield f"Incident {number}: {incident.reason}"
    yield f"  when     {time_of_day(incident.detected_at, zone)}, attempt {incident.id.attempt}, round {incident.id.round}"
    if incident.culprit is not None:
        yield from _culprit_lines(incident.culprit)
    yield f"  judged   {judgement(incident)}"
    yield f"  done     {done(incident)}"
    yield from hang_lines(incident, plain=plain)
    if incident.culprit is not None and incident.culprit.log_tail:
        yield "  its last lines"
        yield from (f"    {line.rstrip()}" for line in incident.culprit.log_tail)


def _culprit_lines(culprit: Culprit) -> Iterator[str]:
    yield f"  culprit  {describe_who(culprit)}, incarnation {culprit.incarnation}" + (
        f", pid {culprit.pid}" if culprit.pid else ""
    )
    ended = f"signal {culprit.signal}" if culprit.signal is not None else f"exit code {culprit.exit_code}"
    if culprit.kind is FaultKind.HANG:
        ended = "no exit; alive but making no progress"
    elif culprit.signal is culprit.exit_code is None:
        ended = "unknown"
    yield f"  ended    {ended}"
    if culprit.error:
        yield f"  said     {culprit.error}"
    if culprit.log_path:
        yield f"  log      {culprit.log_path}"


def time_of_day(at: float, zone: datetime.tzinfo | None = None) -> str:
    """Return `2026-01-02 14:00:40`, in this machine's zone unless another is given."""
    moment = datetime.datetime.fromtimestamp(at, tz=datetime.timezone.utc).astimezone(zone)
    return moment.strftime("%Y-%m-%d %H:%M:%S")
