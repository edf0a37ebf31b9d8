"""Placement groups and node actors of jobs, by calls of Ray. Everything here blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rallypoint.backends.ray.cluster.actors import InstanceHost, NodeHost
from rallypoint.backends.ray.placement import Bundle

__all__ = [
    "Group",
    "address_of",
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


def ensure_group(name: str, bundles: Sequence[Bundle], *, patience: float) -> Group:
    """Return the group of this name, created unless it exists; waits up to `patience` seconds until it is ready."""
    try:
        handle = get_placement_group(name)
    except ValueError:
        selectors = [{_NODE_ID: f"!in({','.join(one.exclude)})"} if one.exclude else {} for one in bundles]
        handle = placement_group(
            [dict(one.ask) for one in bundles],
            strategy="SPREAD",
            name=name,
            lifetime="detached",
            bundle_label_selector=selectors if any(selectors) else None,
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


def address_of(node: str) -> str:
    """Return the address of a Ray node, "" where it is not known."""
    return next((str(one["NodeManagerAddress"]) for one in ray.nodes() if one["NodeID"] == node), "")


def start_actor(
    name: str,
    group: Group,
    *,
    bundle: int,
    ask: Mapping[str, float],
    runtime_env: Mapping[str, Any],
    kind: type[NodeHost | InstanceHost] = NodeHost,
) -> Any:
    """Return the actor of this name, created in a bundle of a group unless it exists. Its process may not run yet."""
    found = find_actor(name)
    if found is not None:
        return found
    asked = dict(ask)
    options: dict[str, Any] = {
        "name": name,
        "lifetime": "detached",
        "max_restarts": 0,
        "max_task_retries": 0,
        **({"max_concurrency": 16} if kind is InstanceHost else {}),
        "num_cpus": asked.pop("CPU", 0),
        "num_gpus": asked.pop("GPU", 0),
        "memory": asked.pop("memory", 0) or None,
        "resources": asked,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=group.handle, placement_group_bundle_index=bundle
        ),
        "runtime_env": dict(runtime_env) or None,
    }
    return ray.remote(kind).options(**options).remote()


def missing_resource(bundles: Sequence[Bundle]) -> str:
    """Return which resource of a group is missing, with the number needed and the number there is."""
    alive = [node for node in ray.nodes() if node.get("Alive")]
    excluded = set.intersection(*(set(one.exclude) for one in bundles))
    nodes = [node for node in alive if node["NodeID"] not in excluded]
    largest_asks: dict[str, float] = {}
    sums: dict[str, float] = {}
    for one in bundles:
        for name, amount in one.ask.items():
            largest_asks[name] = max(amount, largest_asks.get(name, 0.0))
            sums[name] = sums.get(name, 0.0) + amount
    for name, amount in largest_asks.items():
        largest = max((float(node["Resources"].get(name, 0)) for node in nodes), default=0.0)
        if largest < amount:
            return f"a node needs {_shown(name, amount)}, but the largest node of the cluster has {_shown(name, largest)}"
    for name, amount in sums.items():
        there = sum(float(node["Resources"].get(name, 0)) for node in nodes)
        if there < amount:
            return f"{_nodes(len(bundles))} {_shown(name, amount)}, but the cluster has {_shown(name, there)}"
    free = ray.available_resources()
    for name, amount in sums.items():
        now = float(free.get(name, 0))
        if now < amount:
            return f"{_nodes(len(bundles))} {_shown(name, amount)}, but {_shown(name, now)} is free in the cluster"
    wanted = ", ".join(_shown(name, amount) for name, amount in sums.items())
    return f"{_nodes(len(bundles))} {wanted}, but the free resources are spread over too many nodes of the cluster"


def _nodes(bundles: int) -> str:
    return "one node needs" if bundles == 1 else f"{bundles} nodes need"


def _shown(name: str, amount: float) -> str:
    return f"{name} {amount / _GIB:g} GiB" if name == "memory" else f"{name} {amount:g}"
