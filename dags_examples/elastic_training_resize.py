"""A job that another task makes larger while it trains, and that a teardown deletes, however the run goes.

    airflow dags test elastic_training_resize

The first task only submits; the job has a supervisor of its own. `RendezvousSensor` waits for the larger world.
"""

from __future__ import annotations

from airflow.sdk import dag

from rallypoint.operators import DeleteJobOperator, ElasticTrainingOperator, ResizeJobOperator
from rallypoint.sensors import RendezvousSensor

NAME = "{{ ti.xcom_pull(task_ids='submit', key='job_name') }}"


@dag(schedule=None, tags=["rallypoint"], params={"folder": "~/.rallypoint/digits"})
def elastic_training_resize() -> None:
    submit = ElasticTrainingOperator(
        task_id="submit",
        entrypoint="train_digits.py",
        args=["--steps", "100000", "--step-seconds", "0.05"],
        nodes=1,
        checkpoint_dir="{{ params.folder }}/{{ run_id }}",
        recovery={"stop_grace_period": "2s"},
        wait_for_completion=False,
    )
    # [START howto_operator_resize_job]
    grow = ResizeJobOperator(task_id="grow", job_name=NAME, nodes="1:2")
    # [END howto_operator_resize_job]
    grown = RendezvousSensor(task_id="grown", job_name=NAME, min_nodes=2, poke_interval=1, timeout=1800)
    # [START howto_operator_delete_job]
    clean = DeleteJobOperator(task_id="clean", job_name=NAME).as_teardown(setups=submit)
    # [END howto_operator_delete_job]

    submit >> grow >> grown >> clean


elastic_training_resize()
