"""A task whose time is over before its job is."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator

COUNT = Path(__file__).parents[1] / "scripts" / "count.py"


@dag(schedule=None)
def late() -> None:
    ElasticTrainingOperator(
        task_id="train",
        entrypoint=str(COUNT),
        args=["20", "0.05"],
        env={"COUNT_UNTIL": os.environ["TEST_FOLDER"] + "/never"},
        checkpoint_dir=os.environ["TEST_FOLDER"] + "/late",
        recovery={"stop_grace_period": "1s"},
        # Long enough that it is over while the job runs, also where imports take their time.
        execution_timeout=timedelta(seconds=30),
    )


late()
