"""Train a small network on handwritten digits as one task of a DAG: 2 nodes of 2 processes, on the worker's own machine.

    airflow dags test elastic_training_local

Kill one of its training processes while it runs: the task goes on, and the final weights are the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from rallypoint.operators import ElasticTrainingOperator


@dag(schedule=None, tags=["rallypoint"], params={"folder": "~/.rallypoint/digits", "step_seconds": 0.02})
def elastic_training_local() -> None:
    # [START howto_operator_elastic_training]
    train = ElasticTrainingOperator(
        task_id="train",
        entrypoint="train_digits.py",
        args=["--steps", "300", "--step-seconds", "{{ params.step_seconds }}"],
        nodes=2,
        nproc_per_node=2,
        checkpoint_dir="{{ params.folder }}/{{ run_id }}",
        health={"report_interval": "200ms"},
        retries=2,
    )
    # [END howto_operator_elastic_training]

    @task
    def report(training: Any, folder: str) -> float:
        """Read what the script wrote beside its checkpoints."""
        result = json.loads(Path(folder).expanduser().joinpath("result.json").read_text())
        print(f"Job {training['job']}: {training['phase']} at step {training['step']}, {training['faults']} faults")
        print(f"Test accuracy {result['accuracy']:.1%}, weights {result['weights_sha256'][:16]}...")
        return float(result["accuracy"])

    report(train.output, "{{ params.folder }}/{{ run_id }}")


elastic_training_local()
