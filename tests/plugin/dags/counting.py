"""A job that counts for some seconds, two mapped ones that count to little, and a task that has none."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag, task

from rallypoint.operators import ElasticTrainingOperator

COUNT = Path(__file__).parents[2] / "live" / "scripts" / "count.py"


@dag(schedule=None)
def counting() -> None:
    @task
    def rest() -> None:
        """Has nothing to do with training."""

    train = ElasticTrainingOperator(
        task_id="train",
        entrypoint=str(COUNT),
        args=["150", "0.02"],
        nproc_per_node=2,
        checkpoint_dir=os.environ["TEST_FOLDER"] + "/counting",
    )
    ElasticTrainingOperator.partial(task_id="mapped", entrypoint=str(COUNT), on_finish_action="delete_job").expand_kwargs(
        [{"args": [steps, "0.01"], "checkpoint_dir": os.environ["TEST_FOLDER"] + f"/mapped-{steps}"} for steps in ("5", "3")]
    )
    train >> rest()


counting()
