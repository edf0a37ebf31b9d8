"""Sentences about the end of a job, the same in the terminal, in Airflow's task log and in exceptions. Pure."""

from __future__ import annotations

from rallypoint.report.format import counted, describe_who, metrics_text, span
from rallypoint.report.model import Story
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.exits import signal_name
from rallypoint.wire.incident import Cause, Culprit, Incident

__all__ = ["culprit_of", "failure_story", "success_line"]

#: Number of log lines in a message, and characters of each.
_LINES, _WIDTH = 20, 400


def culprit_of(record: JobRecord) -> Culprit | None:
    """Return the culprit of the fault that ended the job: that of the verdict, or else of the last incident."""
    if record.verdict is not None and record.verdict.culprit is not None:
        return record.verdict.culprit
    named = (i for i in _faults(record) if i.culprit is not None)
    last = max(named, key=lambda incident: incident.detected_at, default=None)
    return None if last is None else last.culprit


def failure_story(record: JobRecord) -> str:
    """Return why a job failed: what happened, which rank on which node ended how, and the last lines of its log."""
    verdict, culprit = record.verdict, culprit_of(record)
    reason = f" ({verdict.reason})" if verdict is not None else ""
    message = verdict.message if verdict is not None else "no reason was recorded"
    lines = [f"Job {record.name} failed {_when(record)}{reason}: {message}"]
    if culprit is not None:
        if not _tells_who(message, culprit):
            lines.append(f"First failure: {_whole_end(culprit)}")
        lines.extend(_log_lines(culprit))
    return "\n".join(lines)


def success_line(story: Story) -> str:
    """Return one line: duration, final step and metrics, and the faults from which the job recovered."""
    record, loss = story.record, story.loss
    progress = record.progress
    parts = [f"Job {record.name} succeeded {_when(record)}"]
    if progress.step is not None:
        metrics = metrics_text(progress)
        parts[0] += f" at step {progress.step}" + (f" ({metrics})" if metrics else "")
    if loss.healed:
        repeated = f", {counted(loss.steps, 'step')} repeated" if loss.steps else ""
        parts.append(f"recovered from {counted(loss.healed, 'fault')}{repeated}")
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
    """Return the faults of the last attempt; a requested change of nodes is not a fault."""
    return tuple(i for i in record.incidents if i.id.attempt == record.attempt and i.cause is not Cause.SCALE)


def _tells_who(message: str, culprit: Culprit) -> bool:
    if culprit.error and culprit.error in message:
        return True
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
