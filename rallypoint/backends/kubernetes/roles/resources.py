"""What the containers of simple roles ask for, and the devices that containers of one pod share. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part, labels
from rallypoint.backends.kubernetes.manifests.checks.place import Place, Wrong
from rallypoint.backends.kubernetes.manifests.objects import metadata
from rallypoint.backends.kubernetes.manifests.pods import SHARED
from rallypoint.backends.kubernetes.manifests.resources import device_resource
from rallypoint.backends.kubernetes.manifests.volumes import shm_size
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.layout import Group
from rallypoint.job import Role
from rallypoint.job.quantity import quantity, write_bytes

__all__ = ["CLAIM", "claim", "claim_template", "isolation_problems", "problems", "resources"]

#: Name of the claim of a pod for the devices that its containers share.
CLAIM = SHARED

_DISK = "ephemeral-storage"
_FULL_NAME = "the full name of an extended resource of the nodes, such as example.com/name"


def resources(role: Role, group: Group, *, isolation: str = "") -> dict[str, Any]:
    """Return the requests and limits of one instance; memory and storage are limited to what is asked for.

    Memory that /dev/shm holds is added to it, as for nodes. `isolation` is the resource of which each worker asks for one.
    """
    needs, more, shm = role.instance_resources, role.resources, shm_size(role)
    most = more.memory_limit or needs.memory
    own = {name: str(amount) for name, amount in needs.user_defined.items() if amount}
    same = {**dict(more.extended), **own, **({isolation: "1"} if isolation else {})}
    if needs.gpus and not group.shared:
        same[device_resource(role)] = str(needs.gpus)
    if needs.disk:
        same[_DISK] = needs.disk
    requests = {"cpu": needs.cpu, "memory": write_bytes((quantity(needs.memory) if needs.memory else 0) + shm), **same}
    limits = {"cpu": more.cpu_limit or needs.cpu, "memory": write_bytes(quantity(most) + shm) if most else "", **same}
    asked = {
        kind: {name: amount for name, amount in amounts.items() if amount}
        for kind, amounts in (("requests", requests), ("limits", limits))
        if any(amounts.values())
    }
    return {**asked, **({"claims": [{"name": CLAIM}]} if needs.gpus and group.shared else {})}


def _requested(devices: int, role: Role) -> dict[str, Any]:
    domain, _, name = device_resource(role).partition("/")
    request = {"name": CLAIM, "exactly": {"deviceClassName": f"{name}.{domain}", "count": devices}}
    return {"devices": {"requests": [request]}}


def claim(job: JobRef, place: str, number: int, devices: int, role: Role) -> dict[str, Any]:
    """Return the claim of one group of pods: those of simple roles, and the nodes of elastic roles, use the same devices."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata(job, f"{names.claim(job, place)}-{number}", labels(job, Part.DEVICES)),
        "spec": _requested(devices, role),
    }


def claim_template(job: JobRef, place: str, devices: int, role: Role) -> dict[str, Any]:
    """Return the template of the claim by which each pod of a place has devices that all its containers use."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(job, names.claim_template(job, place), labels(job, Part.DEVICES)),
        "spec": {"spec": _requested(devices, role)},
    }


def problems(place: Place, role: Role, *, shares: bool) -> Iterator[Wrong]:
    """Yield each need of a role that Kubernetes has no word for; `shares`: its instances share pods with others."""
    needs, at = role.instance_resources, place.at("instance_resources")
    if needs.gpus is not None and needs.gpus.denominator != 1 and not shares:
        allowed = "a whole number of devices; only instances of one group share the devices of a pod"
        yield at.at("gpus").refused(str(needs.gpus), f"{allowed}: set per_group, or name the role in groups")
    for name, amount in needs.user_defined.items():
        if "/" not in name:
            yield at.at("user_defined", name).wrong(f"is not allowed with backend kubernetes; expected {_FULL_NAME}")
        if Fraction(amount).denominator != 1:
            yield at.at("user_defined", name).refused(amount, "a whole number; Kubernetes does not divide such a resource")


def isolation_problems(field: str, value: str) -> Iterator[Wrong]:
    """Yield why a resource of isolation cannot be asked for."""
    if value and "/" not in value:
        allowed = f"{_FULL_NAME}; or select machines with node_selector and tolerations"
        yield Place(path=field).refused(value, allowed)
