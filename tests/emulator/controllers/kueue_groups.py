"""Kueue's plain pod groups: which pods count, which are kept by their finalizer, and what becomes of the others. Pure.

A pod of a queue is gated and has Kueue's finalizer. A group is a workload once its total count of active pods is there; an
active pod is one that has not failed. A failed pod is kept by its finalizer until another takes its place (or the group has
ended): deleting it is not enough. A group whose pods are of other shapes than those that were admitted is stopped whole.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.quantities import requests_of

__all__ = [
    "FINALIZER",
    "GATE",
    "GROUP",
    "MANAGED",
    "QUEUE",
    "Group",
    "Tidy",
    "gated",
    "gated_pod",
    "look_at",
    "total_of",
    "wants",
]

Object = dict[str, Any]

_DOMAIN = "kueue.x-k8s.io/"
QUEUE, GROUP, MANAGED = f"{_DOMAIN}queue-name", f"{_DOMAIN}pod-group-name", f"{_DOMAIN}managed"
GATE, FINALIZER = f"{_DOMAIN}admission", f"{_DOMAIN}managed"
_TOTAL, _SHAPE, _RETRIABLE = f"{_DOMAIN}pod-group-total-count", f"{_DOMAIN}role-hash", f"{_DOMAIN}retriable-in-group"


@dataclass(frozen=True, kw_only=True)
class Group:
    """What Kueue remembers of a group of pods, or of a single one: its queue, its shapes, what it needs, and if it may run."""

    queue: str
    shapes: Mapping[str, int]
    needs: Mapping[str, float]
    created: str
    admitted: bool = False


@dataclass(frozen=True, kw_only=True)
class Tidy:
    """What is to be done: finalizers to take away, pods to delete, gates to open; and what is remembered from now on."""

    group: Group | None
    release: tuple[Object, ...] = ()
    delete: tuple[Object, ...] = ()
    open: tuple[Object, ...] = ()
    why: str = field(default="")


def gated_pod(pod: Object) -> Object:
    """Return a pod of a queue as Kueue's webhook makes it: gated, marked, and kept by a finalizer."""
    metadata = pod["metadata"]
    gates = pod["spec"].get("schedulingGates", [])
    if not gated(pod):
        gates = [*gates, {"name": GATE}]
    metadata = metadata | {
        "labels": metadata["labels"] | {MANAGED: "true"},
        "finalizers": sorted({*metadata.get("finalizers", []), FINALIZER}),
    }
    if GROUP in metadata["labels"]:
        metadata["annotations"] = {_SHAPE: _shape(pod)} | metadata.get("annotations", {})
    return pod | {"metadata": metadata, "spec": pod["spec"] | {"schedulingGates": gates}}


def gated(pod: Object) -> bool:
    """Return whether a pod waits for its queue."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", []))


def total_of(pods: Iterable[Object]) -> int:
    """Return how many pods a group says that it has; a pod without a group is one."""
    found = [int(pod["metadata"].get("annotations", {}).get(_TOTAL, 1)) for pod in pods]
    return max(found, default=0)


def wants(spec: Object, count: int = 1) -> dict[str, float]:
    """Return what so many pods of a kind need of their queue; `pods` is how many they are."""
    return {name: amount * count for name, amount in requests_of(spec).items()} | {"pods": float(count)}


def look_at(group: Group | None, pods: list[Object]) -> Tidy:
    """Return what becomes of a group; `group` is None before it is complete for the first time."""
    pods = [
        pod for pod in pods if FINALIZER in pod["metadata"].get("finalizers", []) or "deletionTimestamp" not in pod["metadata"]
    ]
    if not pods:
        return Tidy(group=None)
    active = [pod for pod in pods if _active(pod)]
    if _over(pods):
        return Tidy(group=None, release=tuple(filter(_held, pods)))
    if group is None:
        return _composed(pods, active)
    shapes = Counter(map(_shape, active))
    if not shapes.keys() <= group.shapes.keys():
        strange = ", ".join(sorted(shapes.keys() - group.shapes.keys()))
        return Tidy(group=None, release=tuple(filter(_held, pods)), delete=_undeleted(pods), why=f"no workload has {strange}")
    excess, replaced = [], []
    for shape, count in group.shapes.items():
        here = sorted((p for p in active if _shape(p) == shape), key=lambda p: (gated(p), _age(p)))
        gone = sorted((p for p in pods if not _active(p) and _shape(p) == shape), key=_age)
        excess += here[count:]
        replaced += gone[: max(0, min(len(gone), len(gone) + len(here) - count))]
    stays = [pod for pod in active if pod not in excess]
    return Tidy(
        group=group,
        release=tuple(filter(_held, [*excess, *replaced])),
        delete=_undeleted(excess),
        open=tuple(filter(gated, stays)) if group.admitted else (),
    )


def _composed(pods: list[Object], active: list[Object]) -> Tidy:
    """Return the group of these pods if all of them are there; what has failed before is let go."""
    total = total_of(pods)
    gone = tuple(pod for pod in pods if not _active(pod) and _held(pod))
    if len(active) < total:
        return Tidy(group=None, release=gone)
    active = sorted(active, key=lambda pod: (gated(pod), _age(pod)))
    kept, excess = active[:total], active[total:]
    needs: Counter[str] = Counter()
    for pod in kept:
        needs.update(wants(pod["spec"]))
    group = Group(
        queue=kept[0]["metadata"]["labels"][QUEUE],
        shapes=Counter(map(_shape, kept)),
        needs=dict(needs),
        created=min(map(_age, kept)),
        admitted=not any(map(gated, kept)),
    )
    return Tidy(group=group, release=(*gone, *filter(_held, excess)), delete=_undeleted(excess))


def _over(pods: list[Object]) -> bool:
    """Return whether a group has ended: all succeeded, or all ended of which one says that it is not tried again."""
    phases = [pod.get("status", {}).get("phase") for pod in pods]
    ended = all(phase in {"Succeeded", "Failed"} for phase in phases)
    single = GROUP not in pods[0]["metadata"]["labels"]
    final = any(pod["metadata"].get("annotations", {}).get(_RETRIABLE) == "false" for pod in pods)
    return phases.count("Succeeded") >= total_of(pods) or (ended and (final or single))


def _active(pod: Object) -> bool:
    if "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName"):
        return False
    return bool(pod.get("status", {}).get("phase") != "Failed")


def _held(pod: Object) -> bool:
    return FINALIZER in pod["metadata"].get("finalizers", [])


def _undeleted(pods: Iterable[Object]) -> tuple[Object, ...]:
    return tuple(pod for pod in pods if "deletionTimestamp" not in pod["metadata"])


def _age(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _shape(pod: Object) -> str:
    """Return what kind of member a pod is: as it says itself, or by all that decides where it may run."""
    told = pod["metadata"].get("annotations", {}).get(_SHAPE)
    if told:
        return str(told)
    fields = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "priority", "topologySpreadConstraints")
    shape = {field: pod["spec"].get(field) for field in fields}
    shape["containers"] = [container.get("resources") for container in pod["spec"]["containers"]]
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]
