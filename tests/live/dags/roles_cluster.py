"""Tasks that run jobs with several roles as pods, from a document and from a function; a sensor waits for one role."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from rallypoint.job.builder import JobBuilder
from rallypoint.operators import ElasticTrainingOperator
from rallypoint.sensors import JobStateSensor

SCRIPTS = Path(__file__).parents[1] / "scripts"
WHERE: dict[str, Any] = {"backend": "kubernetes", "namespace": "training"}


def env() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join((str(SCRIPTS), os.environ["PYTHONPATH"])), "ROLE_JOBS_FOLDER": os.environ["FOLDER"]}


def built() -> JobBuilder:
    builder = JobBuilder().device_type("CPU").no_setup_process_group().global_env(env())
    builder.role("trainer").train("role_parts.report").nnodes(1).nproc_per_node(1)
    return builder.role("judge").run("role_parts.report").resource(cpu=1).end()


@dag(schedule=None)
def roles_cluster() -> None:
    reported = {"entrypoint": "role_parts:report", "image": "any:1", "env": env()}
    simple = {**reported, "launch": "simple", "instance_resources": {"gpus": 0}}
    roles = {
        "trainer": {**reported, "process_group": False},
        "judge": simple,
        "rollout": {**simple, "entrypoint": "role_parts:serve", "driver": False},
    }
    train = ElasticTrainingOperator(task_id="train", job={"network_policy": "on", "roles": roles}, **WHERE)

    @task.elastic_training(multiple_outputs=True, image="any:1", **WHERE)
    def decorated() -> JobBuilder:
        return built()

    name = "{{ ti.xcom_pull(task_ids='train', key='job_name') }}"
    met = JobStateSensor(task_id="met", job_name=name, role="judge", phase="Succeeded", poke_interval=1, **WHERE)

    train >> [met, decorated()]


roles_cluster()
