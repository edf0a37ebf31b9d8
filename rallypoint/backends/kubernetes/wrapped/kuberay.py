"""A job file as a RayJob or a RayCluster of KubeRay: a head without CPUs, and worker groups for the roles of the job. Pure.

KubeRay creates the pods and starts Ray in them. The *driver* runs in the cluster: it is the entry point of the RayJob, or a
container of the head pod of a RayCluster. The driver supervises one attempt of the job inside the Ray cluster, with the loop of
all backends, and ends with the exit code of the job. The supervisor outside sees one node, the driver, and decides about the
next attempt, which has a Ray cluster of its own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.manifests.kueue import QUEUE, QUEUE_PRIORITY, queue_of
from rallypoint.backends.kubernetes.manifests.literal import literals, variables
from rallypoint.backends.kubernetes.manifests.parts import TRAINER
from rallypoint.backends.kubernetes.manifests.volumes import RUN
from rallypoint.backends.kubernetes.wrapped.kinds import WRAPPING
from rallypoint.backends.kubernetes.wrapped.worker_groups import WorkerGroup, check, ray_pod, worker_groups
from rallypoint.backends.ray.placement import FILE, PODS, Placement
from rallypoint.backends.ray.placement import draw as draw_ray
from rallypoint.backends.ray.roles import draw_roles, shapes_of
from rallypoint.job import ElasticJob, Role
from rallypoint.job.compile_roles import has_roles
from rallypoint.wire import codec, env
from rallypoint.wire.plan import Kind
from rallypoint.wire.python import run_module

__all__ = ["rays_of"]

#: Name of Ray's container in the head pod.
_HEAD = "ray-head"

#: What the head needs: Ray's own processes, the ledger and the coordinators of one job.
_HEAD_RESOURCES = {"cpu": "1", "memory": "2Gi"}

#: The driver waits for most of its life.
_DRIVER_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}

#: Bytes of the largest job document: the kernel limits one variable of a process to 128 KiB.
_LARGEST = 100_000

#: Fields of a job that only the outer supervisor needs.
_OUTER = ("platform", "namespace", "labels", "annotations", "network_policy", "insecure_token", "host_ignore_list", *PODS)


def rays_of(job: ElasticJob, kind: Kind) -> dict[str, Any]:
    """Return the RayJob or RayCluster that runs a job; raises `SubmitError` for a job that cannot run in one."""
    if job.network_policy:
        raise SubmitError(
            f"network_policy: {job.network_policy!r} is not allowed with kind {kind.value}; expected off, because KubeRay's "
            "operator connects to the head pod of the Ray cluster"
        )
    if job.master.isolation:
        raise SubmitError(
            f"master.isolation: {job.master.isolation!r} is not allowed with kind {kind.value}; expected no value, because "
            "the Ray cluster runs nothing but this job"
        )
    drawn = (draw_roles if has_roles(job) else draw_ray)(_inner(job, {}), namespace="rallypoint", runtime_env={})
    shapes = tuple(shapes_of(drawn.plan, codec.loads(Placement, drawn.attached[FILE])))
    check(job, shapes)
    groups = worker_groups(job, shapes)
    markers = {role: group.marker for group in groups for role in group.roles}
    document = json.dumps(_inner(job, markers).to_document(), separators=(",", ":"))
    if len(document) > _LARGEST:
        raise SubmitError(
            f"the job document has {len(document)} bytes; with kind {kind.value}, at most {_LARGEST} bytes are allowed, "
            "because an environment variable of the Ray cluster contains the document"
        )
    first = next(role for role in job.roles if role.name in groups[0].roles)
    driver = [*run_module("rallypoint.backends.ray.cluster", "run", python=first.python or ("python",))]
    cluster = _cluster(job, groups, document, [] if kind is Kind.RAYJOB else driver)
    spec = cluster if kind is Kind.RAYCLUSTER else _rayjob(driver, cluster)
    queue = dict(_queue(job))
    if queue:  # Kueue admits the job by taking this back
        spec["suspend"] = True
    wrapping = WRAPPING[kind]
    return {
        "apiVersion": wrapping.version,
        "kind": wrapping.kind,
        "metadata": {"name": job.name, "labels": {**job.labels, **queue}, "annotations": dict(job.annotations)},
        "spec": spec,
    }


def _queue(job: ElasticJob) -> Iterator[tuple[str, str]]:
    """Yield the labels for Kueue. A role that names no queue has that of the others."""
    queue = next((found for role in job.roles if (found := queue_of(role))), "")
    priority = next((role.queue_priority for role in job.roles if role.queue_priority), "")
    if queue:
        yield QUEUE, queue
    if queue and priority:
        yield QUEUE_PRIORITY, priority


def _inner(job: ElasticJob, markers: Mapping[str, str]) -> ElasticJob:
    """Return the job that the driver runs, without what only pods have; `markers` are resources of Ray by role."""
    marked = job.model_copy(update={"roles": tuple(_marked(role, markers) for role in job.roles)})
    document = {key: value for key, value in marked.to_document().items() if key not in _OUTER}
    if "roles" in document:
        document["roles"] = [{key: value for key, value in role.items() if key not in _OUTER} for role in document["roles"]]
    if not has_roles(job):
        # The driver runs one attempt. With several roles, this limits the resets of each elastic role within it.
        document["fault_tolerance"] = {**(document.get("fault_tolerance") or {}), "retry_limit": 0}
    found: ElasticJob = type(job).model_validate(document)
    return found


def _marked(role: Role, markers: Mapping[str, str]) -> Role:
    if role.name not in markers:
        return role
    extended = {**role.resources.extended, markers[role.name]: "1"}
    return role.model_copy(update={"resources": role.resources.model_copy(update={"extended": extended})})


def _rayjob(driver: list[str], cluster: dict[str, Any]) -> dict[str, Any]:
    return {
        "entrypoint": shlex.join(driver),  # Ray gives it to a shell
        "entrypointNumCpus": 0,
        # The operator submits: a submitter pod would be one more pod set, and could be retried.
        "submissionMode": "HTTPMode",
        "backoffLimit": 0,
        # Kueue and KubeRay require this of a RayJob that can be suspended; deletion rules exclude it.
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 0,
        "rayClusterSpec": cluster,
    }


def _cluster(job: ElasticJob, groups: Sequence[WorkerGroup], document: str, driver: list[str]) -> dict[str, Any]:
    head = _head(job, groups[0].template, document, driver)
    return {
        "enableInTreeAutoscaling": False,
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0", "num-gpus": "0"}, "template": head},
        "workerGroupSpecs": [_worker_group(group) for group in groups],
    }


def _worker_group(group: WorkerGroup) -> dict[str, Any]:
    return {
        "groupName": group.name,
        "replicas": group.most,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        "rayStartParams": group.start_params,
        "template": group.template,
    }


def _head(job: ElasticJob, template: Mapping[str, Any], document: str, driver: list[str]) -> dict[str, Any]:
    asked = {
        "cpu": job.master.cpu or _HEAD_RESOURCES["cpu"],
        "memory": job.master.memory or _HEAD_RESOURCES["memory"],
    }
    told = {env.RAY_JOB: document, env.RAY_HOME: RUN}
    own = {"env": [*variables(told)], "resources": {"requests": asked, "limits": asked}}
    head = ray_pod(template, _HEAD, own)
    if not driver:
        return head
    ray = head["spec"]["containers"][0]
    beside = {**ray, "name": TRAINER, "command": literals(driver), "resources": _DRIVER_RESOURCES}
    head["spec"]["containers"].insert(1, beside)
    head["spec"]["restartPolicy"] = "Never"
    return head
