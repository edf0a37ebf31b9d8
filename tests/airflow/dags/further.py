"""What a matrix of kills does not show: a job whose connection holds secrets, and sensors on a job that comes to hang.

What a run is told in its `conf`: `folder`, its own. Each training goes on until `FOLDER/enough` is there.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.sensors import HangSensor, JobStateSensor, RendezvousSensor

HANG = Path(__file__).parents[2] / "live" / "scripts" / "hang.py"
FOLDER = "{{ dag_run.conf['folder'] }}"

#: Airflow misses the heartbeat of a task that a busy machine starts slowly, and tries again.
RETRIES: dict[str, Any] = {"retries": 4, "retry_delay": timedelta(0)}


@dag(schedule=None)
def secretive() -> None:
    """A deferred job on a cluster that only the secrets of a connection open, and a sensor that needs them as well."""
    entrypoint = ["sh", "-c", f"until [ -e {FOLDER}/enough ]; do sleep 0.2; done; echo it has trained"]
    ElasticTrainingOperator(
        task_id="train",
        conn_id="canary",
        job={"entrypoint": entrypoint, "recovery": {"max_restarts": 0, "node_replacements": 0}},
        deferrable=True,
        poll_interval=1.0,
        **RETRIES,
    )
    JobStateSensor(task_id="ends", job_task_id="train", conn_id="canary", poke_interval=1.0, timeout=3600, **RETRIES)


@dag(schedule=None)
def guarded() -> None:
    """A job that hangs, and three sensors that no worker starts."""
    ElasticTrainingOperator(
        task_id="train",
        entrypoint=str(HANG),
        args=[FOLDER, "never", "0"],
        nproc_per_node=2,
        health={"hang_downtime": "6s", "hang_detection": 1, "report_interval": "500ms"},
        recovery={"stop_grace_period": "1s"},
        deferrable=True,
        poll_interval=1.0,
        **RETRIES,
    )
    common: dict[str, Any] = {
        "job_task_id": "train",
        "start_from_trigger": True,
        "poke_interval": 1.0,
        "timeout": 3600,
        **RETRIES,
    }
    RendezvousSensor(task_id="meets", min_world_size=2, **common)
    HangSensor(task_id="hangs", on_hang="evidence", **common)
    JobStateSensor(task_id="ends", **common)


secretive()
guarded()
