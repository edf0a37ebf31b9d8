"""The link on a task instance to the page of its job."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

__all__ = ["ElasticTrainingLink", "page_path"]

#: The route of the tab, as the plugin registers it.
ROUTE = "plugin/rallypoint"


class TaskInstanceNames(Protocol):
    """Fields that identify a task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int | None


def page_path(ti: TaskInstanceNames) -> str:
    """Return the path of a task instance's tab below the root of Airflow's UI."""
    index = -1 if ti.map_index is None else ti.map_index
    names = [quote(name, safe="") for name in (ti.dag_id, ti.run_id, ti.task_id)]
    mapped = f"/mapped/{index}" if index >= 0 else ""
    return f"dags/{names[0]}/runs/{names[1]}/tasks/{names[2]}{mapped}/{ROUTE}"


class ElasticTrainingLink(BaseOperatorLink):
    """Link from the task instance to its tab "Elastic training".

    Airflow stores links when a task ends or is deferred; an operator also stores this link before it submits.
    """

    name = "Elastic training"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL of the tab."""
        return self.address(ti_key)

    @staticmethod
    def address(ti: TaskInstanceNames) -> str:
        """Return the URL of a task instance's tab, below `[api] base_url`."""
        from airflow.sdk import conf  # noqa: PLC0415  read when a task runs

        base: str = conf.get("api", "base_url", fallback="/")
        return f"{base.rstrip('/')}/{page_path(ti)}"
