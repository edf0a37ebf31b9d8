"""The shapes that DAGs have: mapped tasks, a task group, a pool, retries, `execution_timeout`, setup and teardown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task, task_group

from rallypoint.operators import DeleteJobOperator, ElasticTrainingOperator

COUNT = Path(__file__).parents[1] / "scripts" / "count.py"
FOLDER = os.environ["TEST_FOLDER"]
COMMON: dict[str, Any] = {"recovery": {"stop_grace_period": "1s"}, "health": {"report_interval": "200ms"}}


@dag(schedule=None)
def shapes() -> None:
    @task.elastic_training(**COMMON)
    def square(number: int) -> int:
        return number * number

    @task
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    @task_group
    def inside() -> None:
        ElasticTrainingOperator(
            task_id="train",
            entrypoint=str(COUNT),
            args=["5", "0.01"],
            checkpoint_dir=f"{FOLDER}/grouped",
            pool="default_pool",
            retries=1,
            **COMMON,
        )

    begin = ElasticTrainingOperator(
        task_id="begin",
        entrypoint=str(COUNT),
        args=["20", "0.05"],
        env={"COUNT_UNTIL": f"{FOLDER}/never"},
        checkpoint_dir=f"{FOLDER}/shapes",
        wait_for_completion=False,
        **COMMON,
    ).as_setup()
    end = DeleteJobOperator(task_id="end", job_name="{{ ti.xcom_pull(task_ids='begin', key='job_name') }}").as_teardown(
        setups=begin
    )

    begin >> inside() >> add(square.expand(number=[2, 3])) >> end


shapes()
