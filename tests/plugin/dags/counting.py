"""A job that counts for some seconds, two mapped ones that count to little, a task that has none, and hostile ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from rallypoint.operators import ElasticTrainingOperator
from tests.plugin import hostile_notes

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

    @task(map_index_template="{{ attack }}")
    def hostile(attack: str, **context: Any) -> None:
        """Write a note that is to make the API server do something for this task."""
        planted = hostile_notes.plant(attack, owner=str(context["ti"].id), folder=Path(os.environ["TEST_FOLDER"]))
        context["task_state_store"].set("rallypoint_job", planted.note)
        context["ti"].xcom_push("rallypoint_page", planted.page)

    train >> rest() >> hostile.expand(attack=list(hostile_notes.ATTACKS))


counting()
