"""A task that only submits, and two sensors that wait for what it submitted."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.sensors import JobPhaseSensor, RendezvousSensor

COUNT = Path(__file__).parents[1] / "scripts" / "count.py"
NAME = "{{ ti.xcom_pull(task_ids='submit', key='job_name') }}"


@dag(schedule=None)
def watching() -> None:
    submit = ElasticTrainingOperator(
        task_id="submit",
        entrypoint=str(COUNT),
        args=["200", "0.02"],
        nodes=2,
        checkpoint_dir=os.environ["TEST_FOLDER"] + "/watching",
        wait_for_completion=False,
    )
    meet = RendezvousSensor(task_id="meet", job_name=NAME, min_nodes=2, poke_interval=0.2, timeout=60)
    end = JobPhaseSensor(task_id="end", job_name=NAME, poke_interval=0.5, timeout=60)
    submit >> meet >> end


watching()
