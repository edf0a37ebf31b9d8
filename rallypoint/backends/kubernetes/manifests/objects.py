"""A job's objects that are no pods, as manifests. Pure; the pods are in `pods.py` and `coordinator.py`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import JOB, UID, Part, labels
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import ElasticJob
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan

__all__ = [
    "FUNCTION_KEY",
    "JOB_KEY",
    "MANIFEST_KEY",
    "PLAN_KEY",
    "RECORD_KEY",
    "SECRET_KEY",
    "STATUS_KEY",
    "attempt_secret",
    "encoded",
    "function_secret",
    "job_configmap",
    "metadata",
    "service",
    "status_configmap",
]

#: Keys of the job's ConfigMap.
JOB_KEY = "job.yaml"
PLAN_KEY = "plan.json"
RECORD_KEY = "record.json"

#: Key of the ConfigMap of a job in a wrapper: the manifest, as it was given, in JSON.
MANIFEST_KEY = "wrapped.json"

#: Key of the status ConfigMap, absent before the coordinator's first word.
STATUS_KEY = "status.json"

#: Key of a Secret that holds what its pods and their supervisor know each other by; the other one is `PLAN_KEY`.
SECRET_KEY = "secret"

#: Key of the Secret with a function.
FUNCTION_KEY = "function.json"


def job_configmap(
    job: JobRef, *, spec: ElasticJob, plan: Plan, record: JobRecord, parent: JobRef | None = None
) -> dict[str, Any]:
    """Return the ConfigMap that is the job: it owns everything else, and its deletion ends everything else.

    That of an elastic role of job `parent` is owned by that job's.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.job_configmap(job.name),
            "namespace": job.namespace,
            "labels": {**spec.labels, **labels(job, Part.JOB)},
            **({"annotations": dict(spec.annotations)} if spec.annotations else {}),
            **({"ownerReferences": [_owner(parent)]} if parent is not None and parent.owner else {}),
        },
        "data": {JOB_KEY: spec.to_yaml(), PLAN_KEY: codec.dumps(plan), RECORD_KEY: codec.dumps_lines(record)},
    }


def status_configmap(job: JobRef) -> dict[str, Any]:
    """Return the ConfigMap for the coordinator's status, without one yet."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.status_configmap(job), labels(job, Part.STATUS)),
        "data": {},
    }


def attempt_secret(
    job: JobRef, *, plan: Plan, attempt: int, token: str, certificates: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the Secret of one attempt: what its pods need to start, and what they know each other by.

    `certificates` are the files of the job's own authority (wire/tls.py); they are renewed in place.
    """
    data = {SECRET_KEY: token, PLAN_KEY: codec.dumps(plan), **(certificates or {})}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.attempt_secret(job, attempt), labels(job, Part.SECRET, attempt=attempt)),
        "type": "Opaque",
        "immutable": not certificates,
        "data": encoded(data),
    }


def encoded(data: Mapping[str, str]) -> dict[str, str]:
    """Return texts as the `data` of a Secret."""
    return {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}


def function_secret(job: JobRef, *, plan: Plan, function: str) -> dict[str, Any]:
    """Return the Secret with what the workers of a spec call; another spec has another one."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.function_secret(job, plan.digest), labels(job, Part.FUNCTION)),
        "type": "Opaque",
        "immutable": True,
        "data": {FUNCTION_KEY: base64.b64encode(function.encode()).decode()},
    }


def service(job: JobRef, ports: Mapping[str, int]) -> dict[str, Any]:
    """Return the headless Service that gives the pods names, for people and scripts; nothing of ours needs them.

    `ports` are numbers by name.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, names.service(job), labels(job, Part.SERVICE)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB: job.name, UID: job.uid},
            "ports": [{"name": name, "port": number, "protocol": "TCP"} for name, number in ports.items()],
        },
    }


def metadata(
    job: JobRef, name: str, its_labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the metadata of an object that the job's ConfigMap owns."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": dict(its_labels),
        **({"annotations": dict(annotations)} if annotations else {}),
        **({"ownerReferences": [_owner(job)]} if job.owner else {}),
    }


def _owner(job: JobRef) -> dict[str, Any]:
    # Nobody waits for us to be gone: `blockOwnerDeletion` would need a permission of its own.
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": names.job_configmap(job.name),
        "uid": job.owner,
        "controller": True,
        "blockOwnerDeletion": False,
    }
