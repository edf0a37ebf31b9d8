"""A job whose script always fails."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator

COUNT = Path(__file__).parents[1] / "scripts" / "count.py"


@dag(schedule=None)
def failing() -> None:
    ElasticTrainingOperator(
        task_id="train",
        entrypoint=str(COUNT),
        args=["5", "0.01", "fail"],
        nproc_per_node=2,
        checkpoint_dir=os.environ["TEST_FOLDER"] + "/failing",
        recovery={"max_restarts": 1, "stop_grace_period": "1s"},
        fault_tolerance={"retry_limit": 0},
    )


failing()
