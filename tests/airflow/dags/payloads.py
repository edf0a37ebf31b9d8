"""Jobs that report what they are given, waited for in the worker or in the triggerer, and unrelated tasks.

What a run is told in its `conf`: `folder`, its own, with what the script is to report.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, dag

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.sensors import ProgressSensor
from tests.airflow.beat import Beats

SCRIPT = Path(__file__).parents[1] / "payload_script.py"
FOLDER = "{{ dag_run.conf['folder'] }}"


def reports(name: str, *, deferrable: bool, fails: bool) -> DAG:
    """A job; in the triggerer also a sensor. A task that shall fail is not retried; another is, where Airflow loses it."""
    again: dict[str, Any] = {"retries": 0 if fails else 4, "retry_delay": timedelta(0)}
    with DAG(name, schedule=None, max_active_runs=16) as made:
        ElasticTrainingOperator(
            task_id="train",
            entrypoint=str(SCRIPT),
            args=[FOLDER],
            recovery={"max_restarts": 0, "node_replacements": 0, "stop_grace_period": "1s"},
            fault_tolerance={"retry_limit": 0},
            health={"report_interval": "500ms"},
            get_logs="all",
            deferrable=deferrable,
            poll_interval=1.0,
            **again,
        )
        if deferrable:
            ProgressSensor(
                task_id="watch",
                job_task_id="train",
                metric="watched",
                above=0.5,
                on_job_end="succeed",
                start_from_trigger=True,
                poke_interval=2.0,
                timeout=3600,
                retries=4,
                retry_delay=timedelta(0),
            )
    return made


reports_sync = reports("reports_sync", deferrable=False, fails=False)
reports_deferred = reports("reports_deferred", deferrable=True, fails=False)
fails_sync = reports("fails_sync", deferrable=False, fails=True)
fails_deferred = reports("fails_deferred", deferrable=True, fails=True)


@dag(schedule=None)
def unrelated() -> None:
    """One deferred task of somebody else."""
    Beats(task_id="beats", folder=FOLDER)


unrelated()
