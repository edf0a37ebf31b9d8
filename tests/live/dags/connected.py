"""Two jobs whose place, image and token are those of a connection: one is waited for in the worker, one in the triggerer."""

from __future__ import annotations

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator


@dag(schedule=None)
def connected():
    for task, deferrable in (("in_the_worker", False), ("deferred", True)):
        ElasticTrainingOperator(
            task_id=task,
            conn_id="train",
            job={"entrypoint": ["sh", "-c", "echo it has trained"], "recovery": {"max_restarts": 0, "node_replacements": 0}},
            deferrable=deferrable,
        )


connected()
