"""Reports of a task about its job to Airflow: XComs, metrics, asset events, lineage, and data for the retry policy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rallypoint.provider.links import ElasticTrainingLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.provider.claim import Claim, Ending, Failure
    from rallypoint.provider.lineage import Library
    from rallypoint.provider.retry_policy import TrainingRetryPolicy
    from rallypoint.supervision.record import Advice

__all__ = ["TellsLineage", "advice", "asset_extra", "count", "count_end", "growing", "mark_outlets", "note_job", "open_library"]

#: Keys of a job's summary in the event of an outlet.
_EXTRA = ("job", "uid", "checkpoint", "step", "metrics", "attempts", "faults", "world_size", "result", "roles")

#: Airflow metrics, by the field of the summary that each reports.
_GAUGES = {"step": "final_step", "world_size": "world_size", "steps_lost": "steps_lost"}


def note_job(context: Context, claim: Claim, *, xcom: bool, log: Any) -> None:
    """Store the job's name before the job is submitted. The tab uses it; the record of the job is authoritative."""
    if xcom:
        context["ti"].xcom_push(key="job_name", value=claim.name)
    # Airflow stores links only when the task ends; this makes the job visible while the task runs.
    link = ElasticTrainingLink()
    context["ti"].xcom_push(key=link.xcom_key, value=link.address(context["ti"]))
    store: Any = context.get("task_state_store")
    if store is None:
        return
    try:
        handle = {"name": claim.name, **claim.place.words(), "owner": claim.owner}
        store.set("rallypoint_job", handle)
    except Exception as error:  # noqa: BLE001  whatever a store of states may raise
        log.warning("Cannot store the name of the job in Airflow's task state store: %s", error)


def asset_extra(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the job data in the event of an outlet, without unknown values."""
    known = ((key, summary.get(key)) for key in _EXTRA)
    return {key: value for key, value in known if value not in (None, "", {})}


def mark_outlets(outlets: Iterable[Any], events: Any, summary: dict[str, Any]) -> None:
    """Add the checkpoint and its metrics to the event of each outlet; values of the DAG author are kept."""
    extra = asset_extra(summary)
    for outlet in outlets:
        event = events[outlet]
        event.extra = {"rallypoint": extra, **event.extra}


def count(stats: Any, summary: dict[str, Any], *, end: str, dag_id: str, task_id: str) -> None:
    """Send Airflow metrics about the end of a job: a counter by end, the duration, and the lost time and steps.

    For a job with several roles, the losses are sent for each role, with the tag `role`.
    """
    tags = {"dag_id": dag_id, "task_id": task_id}
    stats.incr(f"rallypoint.job.{end}", tags=tags)
    if summary.get("duration"):
        stats.timing("rallypoint.job.duration", float(summary["duration"]) * 1000, tags=tags)
    roles = summary.get("roles") or {}
    for role, told in roles.items():
        _count_figures(stats, told, {**tags, "role": str(role)})
    if not roles:
        _count_figures(stats, summary, tags)


def _count_figures(stats: Any, summary: Mapping[str, Any], tags: dict[str, str]) -> None:
    for field, name in _GAUGES.items():
        if isinstance(summary.get(field), (int, float)):
            stats.gauge(f"rallypoint.job.{name}", summary[field], tags=tags)
    for field in ("restarts", "faults"):
        if summary.get(field):
            stats.incr(f"rallypoint.job.{field}", int(summary[field]), tags=tags)


def count_end(ti: Any, ending: Ending, *, log: Any) -> None:
    """Send the Airflow metrics of a job. An error here is only logged."""
    from airflow.sdk.observability import stats  # noqa: PLC0415  a DAG file need not pay for it

    try:
        count(stats, ending.summary, end=ending.end.value, dag_id=ti.dag_id, task_id=ti.task_id)
    except Exception as error:  # noqa: BLE001  whatever a backend of metrics may raise
        log.warning("Cannot send the metrics of the finished job to Airflow: %s", error)


class TellsLineage:
    """Provides the summary of the finished job to OpenLineage.

    The OpenLineage provider calls these methods in the process that has finished the task, so the summary need not be stored
    elsewhere.
    """

    finished_with: Mapping[str, Any] = {}

    def get_openlineage_facets_on_complete(self, _ti: Any) -> Any:
        """Return an `OperatorLineage`; None if OpenLineage is not installed."""
        from rallypoint.provider.lineage import lineage_of  # noqa: PLC0415  a DAG file need not pay for it

        library = open_library()
        named = bool(getattr(self, "outlets", ()) or getattr(self, "inlets", ()))
        # The provider reports inlets and outlets only if the operator reports neither.
        return None if library is None else lineage_of(self.finished_with, library=library, with_output=not named)

    def get_openlineage_facets_on_failure(self, ti: Any) -> Any:
        """Return the same for a job that failed."""
        return self.get_openlineage_facets_on_complete(ti)


def open_library() -> Library | None:
    """Return the module that builds the facets; None if OpenLineage is not installed."""
    try:
        from rallypoint.provider.lineage_facet import LIBRARY  # noqa: PLC0415  brings the packages
    except ImportError:
        return None
    return LIBRARY


def growing(policy: Any, failure: Failure | None) -> TrainingRetryPolicy | None:
    """Return the retry policy if it would increase the memory for this failure; else None."""
    from rallypoint.provider.retry_policy import GROW, TrainingRetryPolicy  # noqa: PLC0415  a DAG file need not pay for it

    if failure is None or not isinstance(policy, TrainingRetryPolicy) or policy.action_on(failure) != GROW:
        return None
    return policy


def advice(policy: Any, failure: Failure | None, ti: Any) -> Callable[[Advice], Advice] | None:
    """Return the data by which the next try changes its job; None if there is no such try or policy."""
    from rallypoint.provider.retry_policy import TrainingRetryPolicy  # noqa: PLC0415  a DAG file need not pay for it

    if failure is None or not isinstance(policy, TrainingRetryPolicy) or ti.try_number > (ti.max_tries or 0):
        return None
    return functools.partial(policy.advise, failure)
