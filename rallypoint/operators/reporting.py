"""What a task reports of its job to Airflow: XComs, metrics, asset events, lineage, and its retry policy's question."""

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

#: What an outlet's event has of the summary of its job.
_EXTRA = ("job", "uid", "checkpoint", "step", "metrics", "attempts", "faults", "world_size", "result", "roles")

#: Numbers that are told to Airflow's metrics, by the field of the summary that each is.
_GAUGES = {"step": "final_step", "world_size": "world_size", "steps_lost": "steps_lost"}


def note_job(context: Context, claim: Claim, *, xcom: bool, log: Any) -> None:
    """Write the intent down before anything is submitted. A hint for people: the job's record is the truth."""
    if xcom:
        context["ti"].xcom_push(key="job_name", value=claim.name)
    # Airflow stores links when the task ends; while it runs, the job is there to be looked at.
    link = ElasticTrainingLink()
    context["ti"].xcom_push(key=link.xcom_key, value=link.address(context["ti"]))
    store: Any = context.get("task_state_store")
    if store is None:
        return
    try:
        handle = {"name": claim.name, **claim.place.words(), "owner": claim.owner}
        store.set("rallypoint_job", handle)
    except Exception as error:  # noqa: BLE001  whatever a store of states may raise
        log.warning("Cannot store the job's name in the task's state store: %s", error)


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
    """Tell Airflow's metrics how a job ended: a counter by end, its duration, and what it lost.

    Of a job with several roles, what was lost is told of each role, with the tag `role`.
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
    """Tell Airflow's metrics how it went. They are nobody's training: what goes wrong there is a line in the log."""
    from airflow.sdk.observability import stats  # noqa: PLC0415  a DAG file need not pay for it

    try:
        count(stats, ending.summary, end=ending.end.value, dag_id=ti.dag_id, task_id=ti.task_id)
    except Exception as error:  # noqa: BLE001  whatever a backend of metrics may raise
        log.warning("Cannot send the job's metrics to Airflow: %s", error)


class TellsLineage:
    """Has the summary of its job once that is over, and tells OpenLineage of it.

    The provider asks in the process that has finished the task, after Airflow has heard of its end, so that the summary need
    be nowhere else. It asks nobody who does not have it installed.
    """

    finished_with: Mapping[str, Any] = {}

    def get_openlineage_facets_on_complete(self, _ti: Any) -> Any:
        """Return an `OperatorLineage`, None where OpenLineage is not installed."""
        from rallypoint.provider.lineage import lineage_of  # noqa: PLC0415  a DAG file need not pay for it

        library = open_library()
        named = bool(getattr(self, "outlets", ()) or getattr(self, "inlets", ()))
        # The provider tells inlets and outlets only where an operator tells neither.
        return None if library is None else lineage_of(self.finished_with, library=library, with_output=not named)

    def get_openlineage_facets_on_failure(self, ti: Any) -> Any:
        """Return the same of a job that failed."""
        return self.get_openlineage_facets_on_complete(ti)


def open_library() -> Library | None:
    """Return the makers, None where OpenLineage's packages are not installed. Only they ask for this, and then they are."""
    try:
        from rallypoint.provider.lineage_facet import LIBRARY  # noqa: PLC0415  brings the packages
    except ImportError:
        return None
    return LIBRARY


def growing(policy: Any, failure: Failure | None) -> TrainingRetryPolicy | None:
    """Return the policy where it would ask for more memory, None where it is another, does not, or nothing has failed."""
    from rallypoint.provider.retry_policy import GROW, TrainingRetryPolicy  # noqa: PLC0415  a DAG file need not pay for it

    if failure is None or not isinstance(policy, TrainingRetryPolicy) or policy.action_on(failure) != GROW:
        return None
    return policy


def advice(policy: Any, failure: Failure | None, ti: Any) -> Callable[[Advice], Advice] | None:
    """Return what decides what a next try is to do otherwise, None where there is none or nobody asks."""
    from rallypoint.provider.retry_policy import TrainingRetryPolicy  # noqa: PLC0415  a DAG file need not pay for it

    if failure is None or not isinstance(policy, TrainingRetryPolicy) or ti.try_number > (ti.max_tries or 0):
        return None
    return functools.partial(policy.advise, failure)
