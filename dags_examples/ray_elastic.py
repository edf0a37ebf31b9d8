"""A job on a Ray cluster: the connection `ray` has its address, and the task waits in the triggerer.

    airflow connections add ray --conn-type rallypoint \\
        --conn-extra '{"platform": "ray", "address": "http://ray-head:8265", "runtime_env": {"working_dir": "dags_examples"}}'
    airflow dags test ray_elastic

The nodes of the cluster need `airflow-provider-rallypoint[agent,client]`; see docs/guides/ray.md.
"""

from __future__ import annotations

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator


@dag(schedule=None, tags=["rallypoint", "ray"])
def ray_elastic() -> None:
    ElasticTrainingOperator(
        task_id="train",
        conn_id="ray",
        entrypoint="train_plain.py",
        nodes="1:2",
        nproc_per_node=2,
        resources={"cpu": "2"},
        deferrable=True,
        retries=2,
    )


ray_elastic()
