"""Tasks that run jobs with several roles, from a document, a builder, and a function; sensors wait for one role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from rallypoint.job.builder import JobBuilder
from rallypoint.operators import ElasticTrainingOperator
from rallypoint.sensors import JobStateSensor, ProgressSensor

SCRIPTS = Path(__file__).parents[1] / "scripts"


def built() -> JobBuilder:
    builder = JobBuilder().device_type("CPU").no_setup_process_group()
    builder.role("trainer").train("role_parts.report").nnodes(1).nproc_per_node(1)
    builder.role("judge").run("role_parts.report").resource(cpu=1)
    return builder.role("rollout").run("role_parts.serve").resource(cpu=1).not_driver().end()


@dag(schedule=None)
def roles() -> None:
    reported = {"entrypoint": "role_parts:report", "workdir": str(SCRIPTS)}
    job = {
        "roles": {
            "trainer": {**reported, "process_group": False},
            "judge": {**reported, "launch": "simple"},
            "rollout": {**reported, "entrypoint": "role_parts:serve", "launch": "simple", "driver": False},
        }
    }
    train = ElasticTrainingOperator(task_id="train", job=job)
    chained = ElasticTrainingOperator(task_id="chained", job=built())

    @task.elastic_training(multiple_outputs=True)
    def decorated() -> JobBuilder:
        return built()

    @task
    def take(summary: dict[str, Any]) -> list[str]:
        return sorted(summary["result"])

    name = "{{ ti.xcom_pull(task_ids='train', key='job_name') }}"
    met = JobStateSensor(task_id="met", job_name=name, role="judge", phase="Succeeded", poke_interval=1)
    late = ProgressSensor(task_id="late", job_name=name, role="trainer", min_step=1, on_job_end="skip", poke_interval=1)

    train >> [met, late]
    take(train.output) >> chained >> decorated()  # type: ignore[arg-type]


roles()
