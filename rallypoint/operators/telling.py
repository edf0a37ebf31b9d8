"""What a finished task tells the rest of Airflow of its job: its outlets, its metrics, its lineage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["asset_extra", "count", "mark_outlets"]

#: What an outlet's event has of the summary of its job.
_EXTRA = ("job", "uid", "checkpoint", "step", "metrics", "attempts", "incidents", "world_size", "result")

#: Numbers that are told to Airflow's metrics, by the field of the summary that each is.
_GAUGES = {"step": "final_step", "world_size": "world_size", "steps_lost": "steps_lost"}


def asset_extra(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what the event of an outlet says of the job that made it; what is not known is left out."""
    known = ((key, summary.get(key)) for key in _EXTRA)
    return {key: value for key, value in known if value not in (None, "", {})}


def mark_outlets(outlets: Iterable[Any], events: Any, summary: dict[str, Any]) -> None:
    """Add the checkpoint and its metrics to the event of each outlet; what the DAG's author wrote there stays."""
    extra = asset_extra(summary)
    for outlet in outlets:
        event = events[outlet]
        event.extra = {"rallypoint": extra, **event.extra}


def count(stats: Any, summary: dict[str, Any], *, end: str, dag_id: str, task_id: str) -> None:
    """Tell Airflow's metrics how a job ended: a counter by end, its duration, and what it lost."""
    tags = {"dag_id": dag_id, "task_id": task_id}
    stats.incr(f"rallypoint.job.{end}", tags=tags)
    if summary.get("duration"):
        stats.timing("rallypoint.job.duration", float(summary["duration"]) * 1000, tags=tags)
    for field, name in _GAUGES.items():
        if isinstance(summary.get(field), (int, float)):
            stats.gauge(f"rallypoint.job.{name}", summary[field], tags=tags)
    for field in ("restarts", "incidents"):
        if summary.get(field):
            stats.incr(f"rallypoint.job.{field}", int(summary[field]), tags=tags)
