"""A task that runs a job with two roles; the next one takes the result of each driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from rallypoint.operators import ElasticTrainingOperator

SCRIPTS = Path(__file__).parents[1] / "scripts"


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

    @task
    def take(summary: dict[str, Any]) -> list[str]:
        return sorted(summary["result"])

    take(train.output)  # type: ignore[arg-type]


roles()
