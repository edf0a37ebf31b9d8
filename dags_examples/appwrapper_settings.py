"""An AppWrapper from a settings.yaml of the pytorchjob-generator: its own controller retries, the task watches and reports.

    airflow dags test appwrapper_settings

The cluster needs the AppWrapper controller and the training operator. The namespace needs what
`rallypoint manifests rbac --wrappers --namespace training | kubectl apply -f -` makes, and a claim `checkpoints` that all pods
may mount. `rallypoint render appwrapper_settings.yaml` prints what is created, but for the job's name: each run of the DAG has
one of its own.
"""

from __future__ import annotations

from airflow.sdk import dag

from rallypoint.operators import AppWrapperOperator


@dag(schedule=None, tags=["rallypoint", "kubernetes"], params={"image": "registry.example/train:1", "namespace": "training"})
def appwrapper_settings() -> None:
    # [START howto_operator_appwrapper]
    AppWrapperOperator(
        task_id="train",
        settings="appwrapper_settings.yaml",
        namespace="{{ params.namespace }}",
        deferrable=True,
        retries=2,
    )
    # [END howto_operator_appwrapper]


appwrapper_settings()
