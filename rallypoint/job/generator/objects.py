"""The objects that settings stand for: an AppWrapper around a PyTorchJob, equal in meaning to what the chart renders. Pure."""

from __future__ import annotations

from typing import Any

from rallypoint.job.annotations import PREFIX
from rallypoint.job.generator.pod import custom_labels, pod_template
from rallypoint.job.generator.settings import Settings

__all__ = ["CHART_VERSION", "appwrapper", "policies", "pytorchjob"]

#: Of the pytorchjob-generator whose objects these are.
CHART_VERSION = "1.1.12"

_VERSION = "workload.codeflare.dev.mlbatch/pytorchGeneratorVersion"
_QUEUE = "kueue.x-k8s.io/queue-name"


def appwrapper(settings: Settings) -> dict[str, Any]:
    """Return the AppWrapper of a job."""
    queue = {_QUEUE: settings.queue_name} if settings.queue_name else {}
    labels = {**queue, **custom_labels(settings)}
    group = [_pod_group(settings)] if settings.pod_group else []
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {
            "name": settings.job_name,
            **({"namespace": settings.namespace} if settings.namespace else {}),
            "annotations": {_VERSION: CHART_VERSION, **{f"{PREFIX}{key}": text for key, text in policies(settings).items()}},
            **({"labels": labels} if labels else {}),
        },
        "spec": {"components": [{"template": component} for component in (*group, pytorchjob(settings))]},
    }


def pytorchjob(settings: Settings) -> dict[str, Any]:
    """Return the PyTorchJob of a job as it stands in its AppWrapper: without a namespace of its own."""
    replicas = {"Master": 1, "Worker": settings.num_pods - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(settings),
        "spec": {
            "pytorchReplicaSpecs": {
                kind: {
                    "replicas": number,
                    "restartPolicy": settings.restart_policy,
                    "template": pod_template(settings),
                }
                for kind, number in replicas.items()
                if number
            }
        },
    }


def _metadata(settings: Settings) -> dict[str, Any]:
    labels = custom_labels(settings)
    return {"name": settings.job_name, **({"labels": labels} if labels else {})}


def _pod_group(settings: Settings) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": _metadata(settings),
        "spec": {"minMember": settings.least_pods},
    }


def policies(settings: Settings) -> dict[str, str]:
    """Return the fault-tolerance settings that are given, by the annotation's name, in the words of AppWrapper's controller."""
    given: dict[str, str | int | None] = {
        "admissionGracePeriodDuration": settings.admission_grace,
        "warmupGracePeriodDuration": settings.warmup_grace,
        "failureGracePeriodDuration": settings.failure_grace,
        "retryPausePeriodDuration": settings.retry_pause,
        "retryLimit": settings.retry_limit,
        "forcefulDeletionGracePeriodDuration": settings.forceful_deletion_grace,
        "deletionOnFailureGracePeriodDuration": settings.deletion_on_failure_grace,
        "successTTLDuration": settings.success_ttl,
    }
    return {key: str(value) for key, value in given.items() if value is not None}
