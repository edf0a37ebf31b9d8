"""How a job ended, in words for people: the same in the terminal, in Airflow's task log and in exceptions. Pure."""

from __future__ import annotations

from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire.incident import Cause, Culprit, Incident
from rallypoint.wire.process_exit import signal_name
from rallypoint.wire.status import JobStatus, Progress

__all__ = [
    "culprit_of",
    "describe_end",
    "describe_holder",
    "describe_who",
    "failure_story",
    "latest_progress",
    "metrics_text",
    "span",
    "success_line",
]

_MINUTE, _HOUR, _DAY = 60, 3600, 86400

#: Lines of a log that a story tells, and characters of each: more belongs to `rallypoint logs`.
_LINES, _WIDTH = 20, 400


def span(seconds: float) -> str:
    """Return a length of time to two figures that matter: `0.35 s`, `3.2 s`, `42 s`, `2m 13s`, `1h 05m`, `3d 4h`."""
    seconds = max(0.0, seconds)
    for digits, limit in ((2, 1), (1, 10), (0, _MINUTE)):
        if round(seconds, digits) < limit:
            return f"{seconds:.{digits}f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d {whole % _DAY // _HOUR}h"


def latest_progress(record: JobRecord, status: JobStatus | None) -> Progress:
    """Return how far training is: the coordinator's word where it has one, what the record remembers elsewhere."""
    told = None if status is None else status.progress
    return record.progress if told is None or told.step is None else told


def metrics_text(progress: Progress) -> str:
    """Return the metrics in their own order, `loss=0.31 accuracy=0.95`; "" when there are none."""
    return " ".join(f"{name}={value:.6g}" for name, value in progress.metrics.items())


def describe_who(culprit: Culprit) -> str:
    """Return `rank 3 on node 1 (host-b)`, or the node alone where the whole of it is meant."""
    node = f"node {culprit.node}" + (f" ({culprit.host})" if culprit.host else "")
    return node if culprit.rank < 0 else f"rank {culprit.rank} on {node}"


def describe_end(culprit: Culprit) -> str:
    """Return how it ended in a word or two: `SIGKILL`, `exit 1`, or `lost` when nobody saw its end."""
    if culprit.signal is not None:
        return signal_name(culprit.signal)
    return "lost" if culprit.exit_code is None else f"exit {culprit.exit_code}"


def describe_holder(holder: Holder) -> str:
    """Return who supervises: `rallypoint supervise (process 12 on ada)`."""
    where = " on ".join(part for part in (f"process {holder.pid}" if holder.pid else "", holder.host) if part)
    return f"{holder.name} ({where})" if where else holder.name


def culprit_of(record: JobRecord) -> Culprit | None:
    """Return who broke first in the fault that ended the job: the verdict's culprit, or else the last incident's."""
    if record.verdict is not None and record.verdict.culprit is not None:
        return record.verdict.culprit
    named = (i for i in _faults(record) if i.culprit is not None)
    last = max(named, key=lambda incident: incident.detected_at, default=None)
    return None if last is None else last.culprit


def failure_story(record: JobRecord) -> str:
    """Return why a job failed: what happened, which rank on which node ended how, and the last lines of its log."""
    verdict, culprit = record.verdict, culprit_of(record)
    reason = f" ({verdict.reason})" if verdict is not None else ""
    message = verdict.message if verdict is not None else "it ended without a verdict"
    lines = [f"Job {record.name} failed {_when(record)}{reason}: {message}"]
    if culprit is not None:
        if not _tells_who(message, culprit):
            lines.append(f"First failure: {_whole_end(culprit)}")
        lines.extend(_log_lines(culprit))
    return "\n".join(lines)


def success_line(record: JobRecord) -> str:
    """Return one line: how long it took, the final step and metrics, and what it got over on the way."""
    progress = record.progress
    parts = [f"Job {record.name} succeeded {_when(record)}"]
    if progress.step is not None:
        metrics = metrics_text(progress)
        parts[0] += f" at step {progress.step}" + (f" ({metrics})" if metrics else "")
    healed = sum(1 for incident in _faults(record) if incident.healed_at is not None)
    if healed:
        parts.append(f"{healed} {'fault' if healed == 1 else 'faults'} healed{_steps_lost(record)}")
    if progress.checkpoint:
        parts.append(f"checkpoint {progress.checkpoint}")
    return "; ".join(parts)


def _when(record: JobRecord) -> str:
    if not record.attempts:
        return "before its first attempt"
    attempt = record.attempts[-1]
    ended = record.last_now if attempt.ended_at is None else attempt.ended_at
    return f"in attempt {attempt.number} after {span(ended - attempt.started_at)}"


def _faults(record: JobRecord) -> tuple[Incident, ...]:
    """Return what broke in the last attempt; coming and going on purpose is no fault."""
    return tuple(i for i in record.incidents if i.id.attempt == record.attempt and i.cause is not Cause.SCALE)


def _steps_lost(record: JobRecord) -> str:
    lost = sum(incident.steps_lost or 0 for incident in _faults(record))
    return f", {lost} {'step' if lost == 1 else 'steps'} repeated" if lost else ""


def _tells_who(message: str, culprit: Culprit) -> bool:
    who = f"node {culprit.node} " if culprit.rank < 0 else f"rank {culprit.rank} "
    return who in message


def _whole_end(culprit: Culprit) -> str:
    if culprit.signal is not None:
        how = f"was killed by {signal_name(culprit.signal)}"
    elif culprit.exit_code is not None:
        how = f"exited with code {culprit.exit_code}"
    else:
        how = "was lost"
    return f"{describe_who(culprit)} {how}" + (f": {culprit.error}" if culprit.error else "")


def _log_lines(culprit: Culprit) -> list[str]:
    if not culprit.log_tail:
        return [f"Log file: {_place(culprit)}"] if culprit.log_path else []
    place = f" ({_place(culprit)})" if culprit.log_path else ""
    tail = (line.rstrip() for line in culprit.log_tail[-_LINES:])
    return [f"Last lines of the log{place}:", *(f"  {line[:_WIDTH]}" for line in tail)]


def _place(culprit: Culprit) -> str:
    return f"{culprit.log_path} on {culprit.host}" if culprit.host else culprit.log_path
