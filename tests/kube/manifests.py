"""Jobs for tests of manifests, and the rules that a `restricted` namespace holds pods against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.backends.kubernetes.backend import draw
from rallypoint.backends.kubernetes.manifests.blueprint import objects
from rallypoint.backends.kubernetes.manifests.coordinator import coordinator_pod
from rallypoint.backends.kubernetes.manifests.hosts import Exclusion
from rallypoint.backends.kubernetes.manifests.pods import node_pod
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import load_job

__all__ = ["IMAGE", "REF", "blueprint_of", "coordinator_of", "node_of", "objects_of", "trainer_of", "unrestricted"]

IMAGE = "registry.example/train:1"
REF = JobRef(name="digits", uid="0123456789abcdef", namespace="team-a", owner="5ad3b3a1-0000-4000-8000-000000000000")

#: Kinds of volumes that the standard `restricted` of Kubernetes' Pod Security Standards allows.
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def blueprint_of(**fields: Any) -> Any:
    """The blueprint of a small job with an image; `fields` are its document's."""
    document = {"name": "digits", "entrypoint": "train.py", "image": IMAGE, **fields}
    return draw(load_job({key: value for key, value in document.items() if value is not None}, based=False), namespace="team-a")


def objects_of(ref: JobRef = REF, **fields: Any) -> list[dict[str, Any]]:
    """All manifests of the first attempt of such a job."""
    blueprint = blueprint_of(**fields)
    return list(objects(ref, blueprint.job, blueprint.plan))


def node_of(
    *, node: int = 0, attempt: int = 1, incarnation: int = 1, unseen: int = 0, hosts: tuple[str, ...] = (), **fields: Any
) -> Any:
    """The pod of one of its nodes."""
    drawn = blueprint_of(**fields)
    which: dict[str, Any] = {"attempt": attempt, "node": node, "incarnation": incarnation, "unseen": unseen}
    return node_pod(REF, spec=drawn.job, plan=drawn.plan, off=Exclusion(required=frozenset(hosts)), **which)


def coordinator_of(*, attempt: int = 1, term: int = 1, account: str = "", **fields: Any) -> Any:
    """The pod of its coordinator."""
    drawn = blueprint_of(**fields)
    which: dict[str, Any] = {"attempt": attempt, "term": term, "service_account": account}
    return coordinator_pod(REF, spec=drawn.job, plan=drawn.plan, **which)


def trainer_of(**fields: Any) -> Any:
    """The container of the workers."""
    return node_of(**fields)["spec"]["containers"][0]


def unrestricted(pod: Mapping[str, Any]) -> Iterator[str]:
    """What of a pod the Pod Security Standard `restricted` refuses (Kubernetes 1.36; Linux)."""
    spec = pod["spec"]
    yield from (name for name in ("hostIPC", "hostNetwork", "hostPID") if spec.get(name))
    for volume in spec.get("volumes", ()):
        yield from (f"volume {kind}" for kind in volume.keys() - {"name"} if kind not in _VOLUMES)
    shared = spec.get("securityContext", {})
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        own = container.get("securityContext", {})
        yield from (f"{container['name']}: {wrong}" for wrong in _unrestricted(shared, own))
        yield from (f"{container['name']}: hostPort" for port in container.get("ports", ()) if port.get("hostPort"))


def _unrestricted(shared: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    both = {**shared, **own}
    capabilities = own.get("capabilities", {})
    rules = {
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
        "capabilities.add": set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"},
        "capabilities.drop": "ALL" in capabilities.get("drop", ()),
        "privileged": not own.get("privileged"),
        "procMount": own.get("procMount", "Default") == "Default",
        "runAsNonRoot": both.get("runAsNonRoot") is True,
        "runAsUser": both.get("runAsUser") != 0,
        "seccompProfile": both.get("seccompProfile", {}).get("type") in {"Localhost", "RuntimeDefault"},
    }
    yield from (name for name, held in rules.items() if not held)
