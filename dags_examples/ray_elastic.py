"""A job on a Ray cluster: the connection `ray` has its address, and the task waits in the triggerer.

    airflow dags test ray_elastic

The extra of the connection, of type `rallypoint`, is
`{"platform": "ray", "address": "http://ray-head:8265", "runtime_env": {"working_dir": "/path/to/dags_examples"}}`: the folder
is uploaded with each job. The nodes of the cluster need `airflow-provider-rallypoint[agent,client]`; see docs/guides/ray.md.
"""

from __future__ import annotations

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator


@dag(schedule=None, tags=["rallypoint", "ray"])
def ray_elastic() -> None:
    ElasticTrainingOperator(
        task_id="train",
        conn_id="ray",
        job={"entrypoint": "train_plain.py", "nodes": "1:2", "nproc_per_node": 2, "resources": {"cpu": "2"}},
        deferrable=True,
        retries=2,
    )


ray_elastic()
