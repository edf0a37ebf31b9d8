"""The pod of a node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.kueue import admission
from rallypoint.backends.kubernetes.labels import Part, labels
from rallypoint.backends.kubernetes.manifests import metadata
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.parts import (
    COORDINATOR,
    POD_IP,
    TRAINER,
    agent_command,
    built,
    container_fields,
    container_of,
    filled,
    pod_defaults,
    role_of,
    spec_fields,
    template_of,
)
from rallypoint.backends.kubernetes.resources import trainer_resources
from rallypoint.backends.kubernetes.volumes import RUN, SHM, TMP, job_mounts, job_volumes, shm_size
from rallypoint.job import ElasticJob, Role
from rallypoint.wire.plan import Plan
from rallypoint.wire.ports import AGENT_PORT

__all__ = ["node_pod"]


def node_pod(
    job: JobRef,
    *,
    spec: ElasticJob,
    plan: Plan,
    attempt: int,
    node: int,
    incarnation: int,
    exclude_hosts: Collection[str] = (),
) -> dict[str, Any]:
    """Return the pod of one incarnation of a node, which runs on no machine of `exclude_hosts` nor of the role's own list."""
    role = role_of(spec, plan)
    template = template_of(role, without=COORDINATOR)
    said = admission(job, role=role, plan=plan, node=node)
    its = labels(job, Part.NODE, attempt=attempt, node=node, incarnation=incarnation)
    trainer = {
        "command": agent_command(
            role,
            "node",
            *("--attempt", attempt),
            *("--node", node),
            *("--incarnation", incarnation),
            *("--dir", RUN),
            *("--shm", SHM),
            *("--host", f"$({POD_IP})"),
            *("--listen", AGENT_PORT),
            *("--output", "pod"),
        ),
        "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "resources": trainer_resources(role, container_of(template["spec"], TRAINER)),
    }
    name = names.node_pod(job, attempt, node, incarnation)
    fields = {
        "metadata": {"labels": dict(role.labels), "annotations": dict(role.annotations)},
        "spec": _fields(role),
    }
    needed = {
        "metadata": metadata(job, name, {**its, **said.labels}, said.annotations),
        "spec": {"restartPolicy": "Never", **_needed(job, role, template["spec"], attempt, trainer)},
    }
    return built(job, role, (pod_defaults(role, plan, TRAINER), template, fields, needed), first=TRAINER, hosts=exclude_hosts)


def _fields(role: Role) -> dict[str, Any]:
    # A sidecar is an init container that never ends: so it is up before the workers, and ends after them.
    sidecars = [{**sidecar, "restartPolicy": "Always"} for sidecar in role.sidecars]
    more = {
        "serviceAccountName": role.service_account,
        "automountServiceAccountToken": bool(role.service_account),
        "volumes": list(role.volumes),
        "initContainers": [*role.init_containers, *sidecars],
    }
    container = {**container_fields(role, TRAINER), **filled({"volumeMounts": list(role.volume_mounts)})}
    return {**spec_fields(role), **filled(more), "containers": [container]}


def _needed(job: JobRef, role: Role, template: Mapping[str, Any], attempt: int, trainer: Mapping[str, Any]) -> dict[str, Any]:
    mounted = [*role.volume_mounts, *(container_of(template, TRAINER).get("volumeMounts") or ())]
    tmp = all(mount.get("mountPath") != TMP for mount in mounted)
    address = {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {"name": TRAINER, **trainer, "env": [address], "volumeMounts": job_mounts(tmp=tmp)}
    return {"containers": [container], "volumes": job_volumes(job, attempt=attempt, shm=shm_size(role), tmp=tmp)}
