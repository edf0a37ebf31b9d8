"""Sensors turn the state of a training into a DAG: meet, come far enough, go on without a hang, end.

    airflow dags test sensors_local

The task `train` submits and ends at once, and a process of its own supervises the job. The sensors wait in the triggerer,
where all of them share one look at the job.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.sensors import HangSensor, JobStateSensor, ProgressSensor, RendezvousSensor


@dag(schedule=None, tags=["rallypoint"], params={"folder": "~/.rallypoint/digits", "step_seconds": 0.02})
def sensors_local() -> None:
    train = ElasticTrainingOperator(
        task_id="train",
        entrypoint="train_digits.py",
        args=["--steps", "300", "--step-seconds", "{{ params.step_seconds }}"],
        nodes=2,
        nproc_per_node=2,
        checkpoint_dir="{{ params.folder }}/{{ run_id }}",
        health={"report_interval": "200ms", "hang_downtime": 10},
        wait_for_completion=False,
    )

    # [START howto_sensor_rendezvous]
    meets = RendezvousSensor(
        task_id="meets",
        job_task_id="train",
        min_nodes=2,
        poke_interval=1,
        timeout=3600,
        on_job_end="succeed",  # a job that has ended before the sensor polls it met the condition
    )
    # [END howto_sensor_rendezvous]

    # [START howto_sensor_progress]
    learns = ProgressSensor(task_id="learns", job_task_id="train", metric="accuracy", above=0.9, poke_interval=1, timeout=3600)
    # [END howto_sensor_progress]

    # [START howto_sensor_hang]
    goes_on = HangSensor(task_id="goes_on", job_task_id="train", on_hang="fail", poke_interval=1, timeout=3600)
    # [END howto_sensor_hang]

    # [START howto_sensor_job_state]
    ends = JobStateSensor(task_id="ends", job_task_id="train", phase="Succeeded", poke_interval=1, timeout=3600)
    # [END howto_sensor_job_state]

    @task
    def report(met: Any, learned: Any) -> None:
        """Say what the sensors have seen."""
        print(f"{met['nodes']} nodes met; at step {learned['step']} it was {learned['metrics']}")

    train >> [meets, learns, goes_on, ends]
    [goes_on, ends] >> report(meets.output, learns.output)


sensors_local()
