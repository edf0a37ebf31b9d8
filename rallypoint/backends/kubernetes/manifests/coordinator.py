"""The pod of a coordinator. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part, labels
from rallypoint.backends.kubernetes.manifests.hosts import ANYWHERE, Exclusion
from rallypoint.backends.kubernetes.manifests.kueue import admission
from rallypoint.backends.kubernetes.manifests.objects import STATUS_KEY, metadata
from rallypoint.backends.kubernetes.manifests.parts import (
    COORDINATOR,
    POD_IP,
    TRAINER,
    agent_command,
    built,
    container_fields,
    container_of,
    coordinator_port,
    filled,
    pod_defaults,
    role_of,
    spec_fields,
    template_of,
)
from rallypoint.backends.kubernetes.manifests.resources import COORDINATOR_RESOURCES
from rallypoint.backends.kubernetes.manifests.volumes import (
    OURS,
    RUN,
    SHM,
    STATUS,
    TMP,
    is_claim,
    job_mounts,
    job_volumes,
    shm_size,
    status_mount,
    status_volume,
)
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import ElasticJob, Role
from rallypoint.wire.paths import METRICS_PATH
from rallypoint.wire.plan import Plan
from rallypoint.wire.ports import metrics_port

__all__ = ["coordinator_pod"]

#: What a template says of the trainer that holds for the coordinator as well: both run the same image in the same way.
_SHARED = ("image", "imagePullPolicy", "env", "envFrom", "securityContext", "volumeMounts")

#: What a template's spec says for nodes alone.
_NODES_ONLY = frozenset({"containers", "initContainers", "resourceClaims", "topologySpreadConstraints", "volumes"})


def coordinator_pod(
    job: JobRef,
    *,
    spec: ElasticJob,
    plan: Plan,
    attempt: int,
    term: int,
    service_account: str = "",
    off: Exclusion = ANYWHERE,
) -> dict[str, Any]:
    """Return the pod of the coordinator of one term: the nodes' image and place, without their GPUs, sidecars and claims.

    It keeps off the machines of `off`, and off those of the role's own list. `service_account` is for a job that names none,
    neither for its coordinator nor for its pods.
    """
    role = role_of(spec, plan)
    said = admission(job, role=role, plan=plan, node=None)
    its = labels(job, Part.COORDINATOR, attempt=attempt, incarnation=term)
    template = _template(role)
    mounts = _mounts(role, template["spec"])
    account = role.coordinator_service_account or role.service_account or service_account
    fields = {
        "metadata": {"labels": dict(role.labels), "annotations": {**_scraped(plan), **role.annotations}},
        "spec": {
            **spec_fields(role),
            # It writes the job's status through the API. Without an account of its own it has no right to, and needs no token.
            "automountServiceAccountToken": bool(account),
            **filled({"serviceAccountName": account}),
            "containers": [container_fields(role, COORDINATOR)],
        },
    }
    tmp = all(mount["mountPath"] != TMP for mount in mounts)
    volumes = job_volumes(job, attempt=attempt, shm=shm_size(role), tmp=tmp, tls=plan.tls)
    ours = [volume for volume in volumes if volume["name"] != _SHM]
    needed = {
        "metadata": metadata(job, names.coordinator_pod(job, term), {**its, **said.labels}, said.annotations),
        "spec": {
            "restartPolicy": "OnFailure",
            "containers": [_container(job, role, plan, attempt, term, [*mounts, *_our_mounts(plan, tmp=tmp), status_mount()])],
            "volumes": [*_volumes(role, template["spec"]), *ours, status_volume(job)],
        },
    }
    layers = (pod_defaults(role, plan, COORDINATOR), _without_nodes(template), fields, needed)
    return built(job, role, layers, first=COORDINATOR, unreachable=spec.health.node_unreachable, off=off)


_SHM = f"{OURS}shm"


def _our_mounts(plan: Plan, *, tmp: bool) -> list[dict[str, Any]]:
    return [mount for mount in job_mounts(tmp=tmp, tls=plan.tls) if mount["mountPath"] != SHM]


def _container(job: JobRef, role: Role, plan: Plan, attempt: int, term: int, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    ports = {"coordinator": coordinator_port(plan), **filled({"metrics": metrics_port(plan, pod=True)})}
    command = agent_command(
        role,
        plan,
        "coordinator",
        *("--uid", job.uid),
        *("--attempt", attempt),
        *("--term", term),
        *("--host", f"$({POD_IP})"),
        *("--status-configmap", f"{job.namespace}/{names.status_configmap(job)}"),
        *("--record-configmap", f"{job.namespace}/{names.job_configmap(job.name)}"),
        *("--status-dir", RUN),
        *("--known-status", f"{STATUS}/{STATUS_KEY}"),
    )
    return {
        "name": COORDINATOR,
        "command": command,
        "env": [{"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in ports.items()],
        "resources": dict(COORDINATOR_RESOURCES),
        "volumeMounts": mounts,
    }


def _scraped(plan: Plan) -> dict[str, str]:
    """Return the annotations by which a Prometheus without an operator finds the metrics; a job may say something else."""
    port = metrics_port(plan, pod=True)
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": METRICS_PATH} if port else {}


def _template(role: Role) -> dict[str, Any]:
    """Return the role's template with one container: the coordinator, which has from the trainer what holds for both."""
    template = template_of(role)
    trainer = container_of(template["spec"], TRAINER)
    own = container_of(template["spec"], COORDINATOR)
    shared = {key: trainer[key] for key in _SHARED if key in trainer}
    return {**template, "spec": {**template["spec"], "containers": [{**shared, **own, "name": COORDINATOR}]}}


def _without_nodes(template: Mapping[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in template["spec"].items() if key not in _NODES_ONLY}
    (container,) = template["spec"]["containers"]
    bare = {key: value for key, value in container.items() if key != "volumeMounts"}
    return {**template, "spec": {**spec, "containers": [bare]}}


def _volumes(role: Role, template: Mapping[str, Any]) -> list[dict[str, Any]]:
    mounted = [*(_mounts_of(template)), *role.volume_mounts]
    paths = {str(mount.get("name")): str(mount.get("mountPath")) for mount in mounted}
    python = (role.python or ("python",))[0]
    volumes = (dict(volume) for volume in (*(template.get("volumes") or ()), *role.volumes))
    return [volume for volume in volumes if not is_claim(volume, paths, python)]


def _mounts(role: Role, template: Mapping[str, Any]) -> list[dict[str, Any]]:
    kept = {volume.get("name") for volume in _volumes(role, template)}
    return [dict(mount) for mount in (*_mounts_of(template), *role.volume_mounts) if mount.get("name") in kept]


def _mounts_of(template: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    (container,) = template["containers"]
    return list(container.get("volumeMounts") or ())
