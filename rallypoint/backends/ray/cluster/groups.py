"""Placement groups and node actors of jobs, by calls of Ray. Everything here blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rallypoint.backends.ray.cluster.host import Host
from rallypoint.backends.ray.placement import Placement

__all__ = [
    "Group",
    "NodeHost",
    "ensure_group",
    "find_actor",
    "finish",
    "groups_of",
    "kill_actor",
    "missing_resource",
    "remove_group",
    "start_actor",
]

#: Ray's word for a group that holds its resources.
_READY = "CREATED"

#: Label of a node that Ray sets itself.
_NODE_ID = "ray.io/node-id"

_GIB = 2**30

#: Seconds that an actor may take to delete its files.
_FINISH = 5.0


@dataclass(frozen=True, kw_only=True)
class Group:
    """A placement group as Ray reports it. `nodes` are the ids of the Ray nodes that hold its bundles."""

    handle: PlacementGroup
    name: str
    state: str
    nodes: Mapping[int, str]

    @property
    def ready(self) -> bool:
        """Whether all bundles hold their resources."""
        return self.state == _READY


class NodeHost(Host):
    """The actor of a node."""

    async def where(self) -> dict[str, str]:
        """Return the id and the address of the Ray node that this actor runs on."""
        return {"node_id": ray.get_runtime_context().get_node_id(), "address": ray.util.get_node_ip_address()}


def ensure_group(name: str, placement: Placement, *, bundles: int, patience: float) -> Group:
    """Return the group of this name, created unless it exists; waits up to `patience` seconds until it is ready."""
    try:
        handle = get_placement_group(name)
    except ValueError:
        selector = {_NODE_ID: f"!in({','.join(placement.exclude)})"}
        handle = placement_group(
            [dict(placement.bundle)] * bundles,
            strategy="SPREAD",
            name=name,
            lifetime="detached",
            bundle_label_selector=[selector] * bundles if placement.exclude else None,
        )
    handle.wait(patience)
    return _group(handle, placement_group_table(handle))


def _group(handle: PlacementGroup, table: Mapping[str, Any]) -> Group:
    nodes = {int(index): str(node) for index, node in (table.get("bundles_to_node_id") or {}).items() if node}
    return Group(handle=handle, name=str(table.get("name", "")), state=str(table.get("state", "")), nodes=nodes)


def groups_of(uid: str) -> tuple[str, ...]:
    """Return the names of the placement groups of a job that are not removed."""
    every = placement_group_table().values()
    return tuple(str(g["name"]) for g in every if str(g["name"]).startswith(f"{uid}-") and g["state"] != "REMOVED")


def remove_group(name: str) -> None:
    """Remove a placement group with all that runs in it; one that does not exist is fine."""
    with contextlib.suppress(ValueError):
        remove_placement_group(get_placement_group(name))


def find_actor(name: str) -> Any | None:
    """Return the handle of a living actor."""
    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def kill_actor(name: str) -> None:
    """End an actor at once; one that does not exist is fine."""
    actor = find_actor(name)
    if actor is not None:
        ray.kill(actor, no_restart=True)


def finish(actor: Any) -> None:
    """Have the actor of a node that has ended delete its files."""
    ray.get(actor.close.remote(), timeout=_FINISH)


def start_actor(name: str, group: Group, *, bundle: int, placement: Placement) -> Any:
    """Return the actor of this name, created in a bundle of a group unless it exists. Its process may not run yet."""
    found = find_actor(name)
    if found is not None:
        return found
    asked = dict(placement.bundle)
    options: dict[str, Any] = {
        "name": name,
        "lifetime": "detached",
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": 16,
        "num_cpus": asked.pop("CPU", 0),
        "num_gpus": asked.pop("GPU", 0),
        "memory": asked.pop("memory", 0) or None,
        "resources": asked,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=group.handle, placement_group_bundle_index=bundle
        ),
        "runtime_env": dict(placement.runtime_env) or None,
    }
    return ray.remote(NodeHost).options(**options).remote()


def missing_resource(placement: Placement, bundles: int) -> str:
    """Return which resource of a group is missing, with the number needed and the number there is."""
    nodes = [node for node in ray.nodes() if node.get("Alive") and node["NodeID"] not in placement.exclude]
    free = ray.available_resources()
    for name, amount in placement.bundle.items():
        largest = max((float(node["Resources"].get(name, 0)) for node in nodes), default=0.0)
        if largest < amount:
            return f"a node needs {_shown(name, amount)}, but the largest node of the cluster has {_shown(name, largest)}"
    for name, amount in placement.bundle.items():
        there = sum(float(node["Resources"].get(name, 0)) for node in nodes)
        if there < amount * bundles:
            return f"{_nodes(bundles)} {_shown(name, amount * bundles)}, but the cluster has {_shown(name, there)}"
    for name, amount in placement.bundle.items():
        now = float(free.get(name, 0))
        if now < amount * bundles:
            return f"{_nodes(bundles)} {_shown(name, amount * bundles)}, but {_shown(name, now)} is free in the cluster"
    wanted = ", ".join(_shown(name, amount) for name, amount in placement.bundle.items())
    return f"{_nodes(bundles)} {wanted} each, but the free resources are spread over too many nodes of the cluster"


def _nodes(bundles: int) -> str:
    return "one node needs" if bundles == 1 else f"{bundles} nodes need"


def _shown(name: str, amount: float) -> str:
    return f"{name} {amount / _GIB:g} GiB" if name == "memory" else f"{name} {amount:g}"
