"""A job whose place, image and token are those of a connection."""

from __future__ import annotations

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator


@dag(schedule=None)
def connected():
    ElasticTrainingOperator(
        task_id="train",
        conn_id="train",
        job={"entrypoint": ["sh", "-c", "echo it has trained"], "recovery": {"max_restarts": 0, "node_replacements": 0}},
    )


connected()
