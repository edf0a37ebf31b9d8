"""The Airflow plugin. Every process of Airflow imports this module, so it imports nothing at module level."""

from __future__ import annotations

import sys
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

__all__ = ["RallypointPlugin"]

_PREFIX = "rallypoint"
_TASK = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"


def _apps() -> list[dict[str, Any]]:
    """Return the web application if this process can serve it; workers and triggerers need no FastAPI."""
    if "airflow.api_fastapi.app" not in sys.modules:
        return []
    from rallypoint.plugin.app import create_app  # noqa: PLC0415  as above

    return [{"app": create_app(), "url_prefix": f"/{_PREFIX}", "name": "Rallypoint"}]


class RallypointPlugin(AirflowPlugin):
    """Adds the tab "Elastic training" to every task instance."""

    name = "rallypoint"
    fastapi_apps = _apps()
    external_views = [  # noqa: RUF012  Airflow's own declaration
        {
            "name": "Elastic training",
            "destination": "task_instance",
            "url_route": "rallypoint",
            # Relative, for proxies that serve Airflow below a path.
            "href": f"{_PREFIX}/ti?{_TASK}",
        }
    ]
