"""Judging what a script reports of its training. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from rallypoint.provider.sensing.conditions import ProgressCondition
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.seen import Memory, Seen, job_values, not_yet
from rallypoint.report.format import metrics_text
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.status import JobState, JobStatus, Progress

__all__ = ["judge"]


def judge(
    asked: ProgressCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory
) -> tuple[Finding, Memory]:
    """Take the newer of what the coordinator says and what the record has."""
    progress = status.progress if status is not None and status.progress.step is not None else record.progress
    values = {**job_values(record, status), "step": progress.step, "metrics": dict(progress.metrics)}
    if asked.no_progress_for:
        return _standstill(asked, record, status, seen, memory, values)
    if _reached(asked, progress):
        text = f"job {record.name} is at step {progress.step} {metrics_text(progress)}".rstrip()
        return Finding(found=Found.MET, text=text, values=values), memory
    return not_yet(_wanted(asked, progress), record, values, so_far=_so_far(record, progress)), memory


def _reached(asked: ProgressCondition, progress: Progress) -> bool:
    if asked.min_step:
        return progress.step is not None and progress.step >= asked.min_step
    value = progress.metrics.get(asked.metric)
    if value is None:
        return False
    # A value that is not a number is on neither side.
    return value >= asked.above if asked.above is not None else asked.below is not None and value <= asked.below


def _wanted(asked: ProgressCondition, progress: Progress) -> str:
    if asked.min_step:
        return f"step {asked.min_step}" + (" (its script does not report steps)" if progress.step is None else "")
    side = f"above {asked.above:g}" if asked.above is not None else f"below {asked.below:g}"
    return f"{asked.metric} {side}" + ("" if asked.metric in progress.metrics else " (the metric was not reported)")


def _standstill(
    asked: ProgressCondition, record: JobRecord, status: JobStatus | None, seen: Seen, memory: Memory, values: dict[str, Any]
) -> tuple[Finding, Memory]:
    step = values["step"]
    tries = record.phase is Phase.RUNNING and status is not None and status.state in (JobState.RUNNING, JobState.FORMING)
    if not tries or step is None:
        # Between two attempts nothing is counted, and nothing is forgotten: the next one has to pass the highest step, too.
        memory = memory.marked("", seen) if step is None else _paused(memory, seen)
        unknown = f"job {record.name} has reported no step yet" if tries else ""
        return not_yet("a standstill", record, values, so_far=unknown), memory
    # Going back to a checkpoint is no progress, and neither is coming as far as before.
    newest = max(step, int(memory.mark or -1))
    memory = memory.marked(str(newest), seen)
    if memory.spent >= asked.no_progress_for:
        text = f"job {record.name}: no step above {newest} for {memory.spent:.0f} s"
        return Finding(found=Found.MET, text=text, values={**values, "no_progress_for": memory.spent}), memory
    wake = asked.no_progress_for - memory.spent
    return not_yet("a standstill", record, values, wake=wake, so_far=_so_far(record, Progress(step=step))), memory


def _paused(memory: Memory, seen: Seen) -> Memory:
    return dataclasses.replace(memory, at=seen.now)


def _so_far(record: JobRecord, progress: Progress) -> str:
    if progress.step is None:
        return ""
    return f"job {record.name} is {record.phase.value} at step {progress.step} {metrics_text(progress)}".rstrip()
