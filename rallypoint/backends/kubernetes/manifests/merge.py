"""Two pod templates become one, by the rules of Kubernetes' strategic merge. Pure.

Mappings are merged key by key. The lists of a pod that have a merge key in Kubernetes are merged item by item; tolerations and
sources of variables add up; every other list is replaced. Where both sides say something, the second one wins.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["merge", "merge_all"]

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
