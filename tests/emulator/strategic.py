"""Strategic merge patch: lists of built-in kinds are merged by a key of their items."""

from __future__ import annotations

from typing import Any

from tests.emulator.bodies import clone
from tests.emulator.errors import bad_request

__all__ = ["MERGE_KEYS", "merge_keys", "strategic_merge"]

#: The lists that are merged, by their field's name, and the keys by which their items are told apart. Lists that are not here
#: are replaced. A field may mean a list in one place and something else in another: then its parent is named too.
MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "podIPs": ("ip",),
    "schedulingGates": ("name",),
    "topologySpreadConstraints": ("topologyKey",),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}

#: Lists of plain values that are merged as sets.
SETS = {"finalizers"}


def merge_keys(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The keys of the list at a path of field names; ports are told apart by other fields in services than in pods."""
    if path[-1:] == ("ports",):
        return ("containerPort",) if "containers" in path or "initContainers" in path else ("port",)
    return MERGE_KEYS.get(path[-1]) if path else None


def strategic_merge(target: Any, patch: Any, path: tuple[str, ...] = ()) -> Any:
    """`target` with what `patch` says, the directives $patch, $retainKeys and $deleteFromPrimitiveList obeyed."""
    if not isinstance(patch, dict):
        return clone(patch)
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: clone(value) for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    merged = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        merged = {key: value for key, value in merged.items() if key in patch["$retainKeys"]}
    for key, value in patch.items():
        _one_field(merged, key, value, path)
    return merged


def _one_field(merged: dict[str, Any], key: str, value: Any, path: tuple[str, ...]) -> None:
    if key.startswith("$deleteFromPrimitiveList/"):
        name = key.partition("/")[2]
        merged[name] = [item for item in merged.get(name) or [] if item not in value]
    elif key.startswith("$"):
        return
    elif value is None:
        merged.pop(key, None)
    elif isinstance(value, list):
        merged[key] = _merged_list(merged.get(key) or [], value, (*path, key))
    else:
        merged[key] = strategic_merge(merged.get(key), value, (*path, key))


def _merged_list(old: list[Any], patch: list[Any], path: tuple[str, ...]) -> list[Any]:
    if path[-1] in SETS:
        return [*old, *(item for item in patch if item not in old)]
    keys = merge_keys(path)
    if not keys or any(not isinstance(item, dict) for item in patch):
        return [clone(item) for item in patch]
    if any(item.get("$patch") == "replace" for item in patch):
        return [clone(item) for item in patch if "$patch" not in item]
    merged = list(old)
    for item in patch:
        _one_item(merged, item, keys, path)
    return merged


def _one_item(merged: list[Any], item: dict[str, Any], keys: tuple[str, ...], path: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in item]
    if missing:
        raise bad_request(f"{'.'.join(path)}: map: {item} does not contain declared merge key: {missing[0]}")
    same = [index for index, other in enumerate(merged) if all(other.get(key) == item[key] for key in keys)]
    if item.get("$patch") == "delete":
        for index in reversed(same):
            del merged[index]
    elif same:
        merged[same[0]] = strategic_merge(merged[same[0]], item, path)
    else:
        merged.append({key: clone(value) for key, value in item.items() if not key.startswith("$")})
