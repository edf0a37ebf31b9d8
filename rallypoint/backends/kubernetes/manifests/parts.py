"""What the pods of nodes and coordinators have in common: defaults that a `restricted` namespace accepts, and the role's words.

A pod is four layers, each of which wins over the ones before: our defaults, the role's `pod_template`, the role's own fields,
and what an agent needs to run. Pure.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import TOGETHER
from rallypoint.backends.kubernetes.manifests.hosts import Exclusion, with_others, without_hosts
from rallypoint.backends.kubernetes.manifests.literal import literals
from rallypoint.backends.kubernetes.manifests.objects import PLAN_KEY, SECRET_KEY
from rallypoint.backends.kubernetes.manifests.volumes import SECRETS, TLS
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import ElasticJob, Role
from rallypoint.wire.plan import Plan
from rallypoint.wire.ports import COORDINATOR_PORT
from rallypoint.wire.python import run_module

__all__ = [
    "CONTAINER_SECURITY",
    "COORDINATOR",
    "POD_IP",
    "TRAINER",
    "agent_command",
    "built",
    "container_fields",
    "container_of",
    "coordinator_port",
    "filled",
    "grace_seconds",
    "merge",
    "merge_all",
    "pod_defaults",
    "role_of",
    "spec_fields",
    "template_of",
]

#: Merge keys of a pod's lists, as in Kubernetes' API types.
_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}

#: Lists that add up: for a user both sides hold.
_ADDED = frozenset({"envFrom", "tolerations"})


def merge_all(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return all `layers` as one; a later one wins. Nothing of the result is shared with them."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer)
    return merged


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` merged into it."""
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        merged[key] = _value(key, merged.get(key), value)
    return merged


def _value(key: str, old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return merge(old, new)
    if isinstance(old, list) and isinstance(new, (list, tuple)):
        if key in _ADDED:
            return [*old, *(copy.deepcopy(item) for item in new if item not in old)]
        if key in _KEYS:
            return _items(old, new, _KEYS[key])
    return copy.deepcopy(list(new) if isinstance(new, tuple) else new)


def _items(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    merged: dict[Any, dict[str, Any]] = {item.get(key): dict(item) for item in old}
    for item in new:
        merged[item.get(key)] = merge(merged.get(item.get(key), {}), item)
    return list(merged.values())


#: Names of our containers.
TRAINER = "trainer"
COORDINATOR = "coordinator"

#: The pod's own address, from the downward API: nothing of ours needs DNS.
POD_IP = "POD_IP"

#: Of every container that does not say otherwise: what a `restricted` namespace demands, and a read-only root.
CONTAINER_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}

_POD_SECURITY: Mapping[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}

#: Taints by which Kubernetes ends the pods of a machine of which it has not heard.
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

#: In the order in which people read them.
_METADATA = ("name", "namespace", "labels", "annotations", "ownerReferences")

#: After the workers had their grace, the agent still reports and the container ends.
_GRACE_MARGIN = 15.0


def role_of(spec: ElasticJob, plan: Plan) -> Role:
    """Return the role that a plan was compiled from; of a job with several roles the first."""
    return next(role for role in spec.roles if plan.roles or role.name == plan.role)


def template_of(role: Role, *, without: str = "") -> dict[str, Any]:
    """Return the role's pod template with both of its parts, and not with the container `without`."""
    spec = dict(role.pod_template.get("spec") or {})
    if "containers" in spec:
        spec["containers"] = [item for item in spec["containers"] if item.get("name") != without]
    return {"metadata": role.pod_template.get("metadata") or {}, "spec": spec}


def container_of(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a container of a pod's spec by its name; an empty mapping where there is none."""
    return next((dict(item) for item in spec.get("containers") or () if item.get("name") == name), {})


def coordinator_port(plan: Plan) -> int:
    """Return where the coordinator listens: each pod has an address of its own, so one number serves all."""
    return plan.rendezvous.coordinator_port or COORDINATOR_PORT


def agent_command(role: Role, plan: Plan, *words: object) -> list[str]:
    """Return the command line of an agent that finds its plan and its secret where every pod of the job has them."""
    tls = ("--tls", TLS) if plan.tls else ()
    files = ("--plan", f"{SECRETS}/{PLAN_KEY}", "--secret-file", f"{SECRETS}/{SECRET_KEY}", *tls)
    first, *rest = words
    python = literals(role.python or ("python",))
    return [*run_module("rallypoint.agent", str(first), *files, *map(str, rest), python=python)]


def grace_seconds(role: Role, plan: Plan) -> int:
    """Return how long a pod has from TERM to KILL: whole seconds, as Kubernetes counts."""
    grace = role.termination_grace_period
    return math.ceil(plan.workers.stop_grace + _GRACE_MARGIN if grace is None else grace)


def pod_defaults(role: Role, plan: Plan, container: str) -> dict[str, Any]:
    """Return the first layer: what holds where nobody says otherwise."""
    return {
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": dict(_POD_SECURITY),
            "terminationGracePeriodSeconds": grace_seconds(role, plan),
            "containers": [{"name": container, "securityContext": dict(CONTAINER_SECURITY)}],
        }
    }


def spec_fields(role: Role) -> dict[str, Any]:
    """Return what the role's own fields say of a pod: where it may run and as whom."""
    return filled(
        {
            "nodeSelector": dict(role.node_selector),
            "tolerations": list(role.tolerations),
            "affinity": dict(role.affinity),
            "imagePullSecrets": [{"name": name} for name in role.image_pull_secrets],
            "priorityClassName": role.priority_class,
            "schedulerName": role.scheduler_name,
            "securityContext": dict(role.pod_security_context),
            "terminationGracePeriodSeconds": math.ceil(role.termination_grace_period or 0),
        }
    )


def container_fields(role: Role, name: str) -> dict[str, Any]:
    """Return what the role's own fields say of our container."""
    fields = {
        "image": role.image,
        "imagePullPolicy": role.image_pull_policy,
        "env": list(role.pod_env),
        "envFrom": list(role.env_from),
        "securityContext": dict(role.security_context),
    }
    return {"name": name, **filled(fields)}


def built(
    job: JobRef,
    role: Role,
    layers: Iterable[Mapping[str, Any]],
    *,
    first: str,
    unreachable: float,
    off: Exclusion,
    together: str = "",
) -> dict[str, Any]:
    """Return the pod that `layers` make, with the container `first` in front and every container as safe as ours.

    It stays for `unreachable` seconds on a machine that is out of reach. It keeps off the machines of `off` and of the role's
    own list, and runs on the machine of the pods with the same `together`.
    """
    pod = merge_all(*layers)
    spec = pod["spec"]
    spec["subdomain"] = names.service(job)
    spec["containers"].sort(key=lambda container: container["name"] != first)
    # What a template gives as arguments would be arguments of our command.
    spec["containers"][0].pop("args", None)
    for container in (*spec.get("initContainers", ()), *spec["containers"][1:]):
        container["securityContext"] = merge_all(CONTAINER_SECURITY, container.get("securityContext") or {})
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *_tolerations(spec.get("tolerations") or (), unreachable)]
    every = dataclasses.replace(off, required=off.required.union(role.host_ignore_list))
    affinity = without_hosts(spec.get("affinity") or {}, every)
    if together:
        affinity = with_others(affinity, TOGETHER, together)
        pod["metadata"]["labels"][TOGETHER] = together
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": filled({key: pod["metadata"].get(key) for key in _METADATA}),
        "spec": {**spec, **filled({"affinity": affinity})},
    }


def _tolerations(given: Iterable[Mapping[str, Any]], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield how long a pod stays on a machine that is out of reach; nothing of a taint of which the job speaks itself.

    Kubernetes' own default is 300 seconds, in which a lost machine keeps its place in the job.
    """
    for key in _UNREACHABLE:
        if not any(t.get("key", "") in ("", key) and t.get("effect", "") in ("", "NoExecute") for t in given):
            yield {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": math.ceil(seconds)}


def filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that hold something."""
    return {name: value for name, value in fields.items() if value}
