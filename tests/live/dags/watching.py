"""A task that only submits, and two sensors that wait for what it submitted; it trains until the first has seen it."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag, task

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.sensors import JobStateSensor, RendezvousSensor

COUNT = Path(__file__).parents[1] / "scripts" / "count.py"
ENOUGH = Path(os.environ["TEST_FOLDER"], "enough")
NAME = "{{ ti.xcom_pull(task_ids='submit', key='job_name') }}"


@dag(schedule=None)
def watching() -> None:
    submit = ElasticTrainingOperator(
        task_id="submit",
        entrypoint=str(COUNT),
        args=["20", "0.05"],
        env={"COUNT_UNTIL": str(ENOUGH)},
        nodes=2,
        checkpoint_dir=os.environ["TEST_FOLDER"] + "/watching",
        wait_for_completion=False,
    )
    meet = RendezvousSensor(task_id="meet", job_name=NAME, min_nodes=2, poke_interval=0.2, timeout=600)
    end = JobStateSensor(task_id="end", job_name=NAME, poke_interval=0.5, timeout=600)

    @task
    def let_end() -> None:
        ENOUGH.touch()

    submit >> meet >> let_end() >> end


watching()
