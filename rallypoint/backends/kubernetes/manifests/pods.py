"""The pod of a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part, labels
from rallypoint.backends.kubernetes.manifests.hosts import ANYWHERE, Exclusion
from rallypoint.backends.kubernetes.manifests.kueue import admission
from rallypoint.backends.kubernetes.manifests.objects import FUNCTION_KEY, metadata
from rallypoint.backends.kubernetes.manifests.parts import (
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
from rallypoint.backends.kubernetes.manifests.resources import trainer_resources
from rallypoint.backends.kubernetes.manifests.volumes import (
    FUNCTION,
    RUN,
    SHM,
    TMP,
    function_mount,
    function_volume,
    job_mounts,
    job_volumes,
    shm_size,
)
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import ElasticJob, Role
from rallypoint.wire.env import FUNCTION_FILE, MACHINE, UNSEEN
from rallypoint.wire.function import is_function
from rallypoint.wire.plan import Plan
from rallypoint.wire.ports import AGENT_PORT

__all__ = ["SHARED", "node_pod"]

#: Name of the claim of a pod for devices that it shares with others.
SHARED = "devices"


def node_pod(
    job: JobRef,
    *,
    spec: ElasticJob,
    plan: Plan,
    attempt: int,
    node: int,
    incarnation: int,
    unseen: int = 0,
    off: Exclusion = ANYWHERE,
) -> dict[str, Any]:
    """Return the pod of one incarnation of a node.

    It keeps off the machines of `off`, and off those of the role's own list.
    """
    role = role_of(spec, plan)
    template = template_of(role, without=COORDINATOR)
    said = admission(job, role=role, plan=plan, node=node)
    its = labels(job, Part.NODE, attempt=attempt, node=node, incarnation=incarnation)
    trainer = {
        "command": _command(role, plan, attempt, node, incarnation),
        **({"env": [{"name": UNSEEN, "value": str(unseen)}]} if unseen else {}),
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
        "spec": {
            "restartPolicy": "Never",
            "hostname": names.hostname(node),
            **_needed(job, role, plan, template["spec"], attempt, trainer),
        },
    }
    layers = (
        pod_defaults(role, plan, TRAINER),
        _master(job, plan, node),
        template,
        fields,
        needed,
        _shared_devices(plan, node),
    )
    together = f"{plan.place}-{node}" if plan.place else ""
    return built(job, role, layers, first=TRAINER, unreachable=spec.health.node_unreachable, off=off, together=together)


def _shared_devices(plan: Plan, node: int) -> dict[str, Any]:
    """Return the claim of the devices that a node shares with the other pods of its group of roles."""
    if not plan.place_claim:
        return {}
    claim = {"name": SHARED, "resourceClaimName": f"{plan.place_claim}-{node}"}
    container = {"name": TRAINER, "resources": {"claims": [{"name": SHARED}]}}
    return {"spec": {"resourceClaims": [claim], "containers": [container]}}


def _command(role: Role, plan: Plan, attempt: int, node: int, incarnation: int) -> list[str]:
    return agent_command(
        role,
        plan,
        "node",
        *("--attempt", attempt),
        *("--node", node),
        *("--incarnation", incarnation),
        *("--dir", RUN),
        *("--shm", SHM),
        *("--host", f"$({POD_IP})"),
        *("--listen", AGENT_PORT),
        *("--output", "pod"),
    )


def _master(job: JobRef, plan: Plan, node: int) -> dict[str, Any]:
    """Return where setup commands find node 0, as they do where a training operator makes the pods; it knows its own address.

    It is a name, for whoever asks for it: nothing of ours looks it up.
    """
    if not plan.setup or node == 0:
        return {}
    address = {"name": "MASTER_ADDR", "value": f"{names.hostname(0)}.{names.service(job)}"}
    return {"spec": {"containers": [{"name": TRAINER, "env": [address]}]}}


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


def _needed(
    job: JobRef, role: Role, plan: Plan, template: Mapping[str, Any], attempt: int, trainer: Mapping[str, Any]
) -> dict[str, Any]:
    mounted = [*role.volume_mounts, *(container_of(template, TRAINER).get("volumeMounts") or ())]
    tmp = all(mount.get("mountPath") != TMP for mount in mounted)
    env: list[dict[str, Any]] = [
        {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": MACHINE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    mounts = job_mounts(tmp=tmp, tls=plan.tls)
    volumes = job_volumes(job, attempt=attempt, shm=shm_size(role), tmp=tmp, tls=plan.tls)
    if is_function(plan):
        env.append({"name": FUNCTION_FILE, "value": f"{FUNCTION}/{FUNCTION_KEY}"})
        mounts.append(function_mount())
        volumes.append(function_volume(job, plan.digest))
    env.extend(trainer.get("env", ()))
    return {"containers": [{"name": TRAINER, **trainer, "env": env, "volumeMounts": mounts}], "volumes": volumes}
