"""Nodes that are tried before a job trains on them; what was found goes on to the next task.

    airflow dags test node_check

`NodeCheckOperator` fails when a node is at fault. Here `fail_on="never"` lets the DAG decide.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task

from rallypoint.operators import NodeCheckOperator


@task
def decide(found: dict[str, Any]) -> list[str]:
    """Keep the machines off which training should stay; here one would write to an inventory."""
    return sorted({*found["faulty_hosts"], *found["stragglers"]})


@dag(schedule=None, tags=["rallypoint"])
def node_check() -> None:
    # [START howto_operator_node_check]
    check = NodeCheckOperator(task_id="check", nodes=2, fail_on="never")
    # [END howto_operator_node_check]

    decide(check.output)  # type: ignore[arg-type]  # stands for what it will be when the task runs


node_check()
