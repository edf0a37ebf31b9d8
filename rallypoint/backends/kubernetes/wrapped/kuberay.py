"""A job file as a RayJob or a RayCluster of KubeRay: a head without CPUs, and one worker group for each shape of node. Pure.

KubeRay creates the pods and starts Ray in them. The *driver* runs in the cluster: it is the entry point of the RayJob, or a
container of the head pod of a RayCluster. The driver supervises one attempt of the job inside the Ray cluster, with the loop of
all backends, and ends with the exit code of the job. The supervisor outside sees one node, the driver, and decides about the
next attempt, which has a Ray cluster of its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.manifests.blueprint import in_the_image
from rallypoint.backends.kubernetes.manifests.kueue import QUEUE, QUEUE_PRIORITY, queue_of
from rallypoint.backends.kubernetes.manifests.parts import POD_IP, TRAINER, role_of
from rallypoint.backends.kubernetes.manifests.validation import check
from rallypoint.backends.kubernetes.manifests.volumes import RUN
from rallypoint.backends.kubernetes.wrapped.kinds import WRAPPING
from rallypoint.backends.kubernetes.wrapped.template import pod_template
from rallypoint.backends.ray.placement import FILE, PODS, Placement
from rallypoint.backends.ray.placement import draw as draw_ray
from rallypoint.backends.roles import only_plan
from rallypoint.job import ElasticJob, Role, compile_plan
from rallypoint.wire import codec, env
from rallypoint.wire.plan import Kind, Plan

__all__ = ["rays_of"]

#: KubeRay takes the first container of a pod for Ray's.
_HEAD, _WORKER = "ray-head", "ray-worker"

#: What the head needs: Ray's own processes, the ledger and the coordinators of one job.
_HEAD_RESOURCES = {"cpu": "1", "memory": "2Gi"}

#: The driver waits for most of its life.
_DRIVER_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}

#: Bytes of the largest job document: the kernel limits one variable of a process to 128 KiB.
_LARGEST = 100_000

#: Worker groups of one cluster: Kueue counts eight pod sets, and the head is one of them.
_MOST_GROUPS = 7

#: Variables by which an agent in a pod knows its place; on Ray, it has them from the actor of its node.
_OURS = (POD_IP, env.MACHINE)

#: Fields of a job that only the outer supervisor needs.
_OUTER = ("platform", "namespace", "labels", "annotations", "network_policy", "insecure_token", *PODS)


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
    only_plan(job, backend=f"kind {kind.value} of the kubernetes")
    inner = draw_ray(_inner(job), namespace="rallypoint", runtime_env={})
    placement = codec.loads(Placement, inner.attached[FILE])
    # Kubernetes would expand `$(NAME)` in the value of a variable.
    document = json.dumps(inner.job.to_document(), separators=(",", ":")).replace("$(", "$$(")
    if len(document) > _LARGEST:
        raise SubmitError(
            f"the job document has {len(document)} bytes; with kind {kind.value}, at most {_LARGEST} bytes are allowed, "
            "because an environment variable of the Ray cluster contains the document"
        )
    (plan,) = compile_plan(job)
    role = role_of(job, plan)
    # Certificates of the job are made by the ledger.
    plan = dataclasses.replace(in_the_image(plan, role), tls="")
    check(job, plan, role)
    queue = queue_of(role)
    labels = {**job.labels, **({QUEUE: queue} if queue else {})}
    if queue and role.queue_priority:
        labels[QUEUE_PRIORITY] = role.queue_priority
    wrapping = WRAPPING[kind]
    driver = [*(role.python or ("python",)), "-m", "rallypoint.backends.ray.cluster", "run"]
    cluster = _cluster(job, plan, role, placement, document, [] if kind is Kind.RAYJOB else driver)
    spec = cluster if kind is Kind.RAYCLUSTER else _rayjob(driver, cluster)
    if queue:  # Kueue admits the job by taking this back
        spec["suspend"] = True
    return {
        "apiVersion": wrapping.version,
        "kind": wrapping.kind,
        "metadata": {"name": job.name, "labels": labels, "annotations": dict(job.annotations)},
        "spec": spec,
    }


def _inner(job: ElasticJob) -> ElasticJob:
    """Return the job that the driver runs: one attempt, without what only pods have."""
    document = {key: value for key, value in job.to_document().items() if key not in _OUTER}
    roles = document.get("roles")
    if isinstance(roles, Mapping):
        document["roles"] = {name: _without(role) for name, role in roles.items()}
    elif roles:
        document["roles"] = [_without(role) for role in roles]
    tolerance = {**(document.get("fault_tolerance") or {}), "retry_limit": 0}
    found: ElasticJob = type(job).model_validate({**document, "fault_tolerance": tolerance})
    return found


def _without(role: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in role.items() if key not in _OUTER}


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


def _cluster(job: ElasticJob, plan: Plan, role: Role, placement: Placement, document: str, driver: list[str]) -> dict[str, Any]:
    template = pod_template(job, plan, role)
    head = _head(job, template, document, driver)
    groups = list(_groups(plan, template, placement))
    if len(groups) > _MOST_GROUPS:
        raise SubmitError(
            f"roles: the job needs {len(groups)} worker groups of a Ray cluster; at most {_MOST_GROUPS} are allowed"
        )
    return {
        "enableInTreeAutoscaling": False,
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0", "num-gpus": "0"}, "template": head},
        "workerGroupSpecs": groups,
    }


def _head(job: ElasticJob, template: Mapping[str, Any], document: str, driver: list[str]) -> dict[str, Any]:
    asked = {
        "cpu": job.master.cpu or _HEAD_RESOURCES["cpu"],
        "memory": job.master.memory or _HEAD_RESOURCES["memory"],
    }
    variables = [{"name": env.RAY_JOB, "value": document}, {"name": env.RAY_HOME, "value": RUN}]
    own = {"env": variables, "resources": {"requests": asked, "limits": asked}}
    head = _pod(template, _HEAD, own)
    if not driver:
        return head
    ray = head["spec"]["containers"][0]
    beside = {**ray, "name": TRAINER, "command": driver, "resources": _DRIVER_RESOURCES}
    head["spec"]["containers"].insert(1, beside)
    head["spec"]["restartPolicy"] = "Never"
    return head


def _pod(template: Mapping[str, Any], name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod of a node as a pod of Ray: KubeRay gives its container the command."""
    spec = {**template["spec"]}
    trainer, *others = spec["containers"]
    kept = {key: value for key, value in trainer.items() if key not in ("command", "args", "ports", "env")}
    variables = [one for one in trainer["env"] if one["name"] not in (*_OURS, *_names(own))]
    ray = {**kept, "name": name, **own, "env": [*variables, *own.get("env", ())]}
    return {**template, "spec": {**spec, "containers": [ray, *others]}}


def _names(own: Mapping[str, Any]) -> set[str]:
    return {str(one["name"]) for one in own.get("env", ())}


def _groups(plan: Plan, template: Mapping[str, Any], placement: Placement) -> Iterator[dict[str, Any]]:
    """Yield a worker group for each shape of node."""
    yield {
        "groupName": placement.role,
        "replicas": plan.max_nodes,
        "minReplicas": plan.min_nodes,
        "maxReplicas": plan.max_nodes,
        "rayStartParams": dict(_start_params(placement.bundle)),
        "template": _pod(template, _WORKER, {}),
    }


def _start_params(bundle: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield what Ray is told that the node has: what one node of the job needs."""
    found = dict(bundle)
    yield "num-cpus", str(math.ceil(found.pop("CPU", 0)))
    yield "num-gpus", str(math.ceil(found.pop("GPU", 0)))
    memory = found.pop("memory", 0)
    if memory:
        yield "memory", str(math.ceil(memory))
    if found:
        yield "resources", json.dumps(json.dumps(found))
