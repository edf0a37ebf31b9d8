"""An elastic job on Kubernetes: 2 to 4 pods train on as long as two of them are there. The image brings torch and the script.

    airflow dags test kubernetes_elastic

The namespace needs what `rallypoint manifests rbac --namespace training | kubectl apply -f -` makes, and a claim `checkpoints`
that all pods may mount.
"""

from __future__ import annotations

from airflow.sdk import dag

from rallypoint.operators import ElasticTrainingOperator


@dag(schedule=None, tags=["rallypoint", "kubernetes"], params={"image": "registry.example/train:1", "namespace": "training"})
def kubernetes_elastic() -> None:
    # [START howto_operator_elastic_training_kubernetes]
    ElasticTrainingOperator(
        task_id="train",
        backend="kubernetes",
        namespace="{{ params.namespace }}",
        job="kubernetes_elastic.yaml",
        image="{{ params.image }}",
        checkpoint_dir="/checkpoints/{{ run_id }}",
        deferrable=True,
        retries=2,
    )
    # [END howto_operator_elastic_training_kubernetes]


kubernetes_elastic()
