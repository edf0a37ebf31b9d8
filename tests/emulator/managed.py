"""managedFields: who owns which field of an object, as far as server-side apply asks for it.

Objects that were never applied carry none (the real server writes them always): the first apply notes everything that was
there as owned by `before-first-apply`, and from then on other writes are tracked.
"""

from __future__ import annotations

from typing import Any

from tests.emulator.bodies import Body, stamp
from tests.emulator.resources import Resource
from tests.emulator.strategic import merge_keys

__all__ = [
    "BEFORE",
    "Owner",
    "Path",
    "entries",
    "fields_of",
    "item_name",
    "list_keys",
    "paths_in",
    "track_update",
    "value_at",
    "write_entries",
]

#: A field: its names from the top. An item of a list with keys is named `k:...`, and its own existence ".".
Path = tuple[str, ...]

BEFORE = "before-first-apply"

#: An owner: manager, operation, subresource.
Owner = tuple[str, str, str]

UNTRACKED = {"apiVersion", "kind", "status"}
OWN_METADATA = {"annotations", "finalizers", "labels", "ownerReferences"}


def fields_of(resource: Resource, body: Body) -> set[Path]:
    """The leaves of what a manager can own in `body`."""
    found: set[Path] = set()
    for key, value in body.items():
        if key == "metadata":
            for name, part in (value or {}).items():
                if name in OWN_METADATA:
                    _leaves(resource, part, ("metadata", name), found)
        elif key not in UNTRACKED:
            _leaves(resource, value, (key,), found)
    return found


def list_keys(resource: Resource, path: Path) -> tuple[str, ...] | None:
    names = tuple(step for step in path if not step.startswith("k:"))
    return resource.list_keys(names) if resource.list_keys else merge_keys(names)


def item_name(keys: tuple[str, ...], item: Body) -> str:
    return "k:" + ",".join(f"{key}={item.get(key)!r}" for key in keys)


def _leaves(resource: Resource, value: Any, path: Path, found: set[Path]) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _leaves(resource, item, (*path, key), found)
        return
    keys = list_keys(resource, path) if isinstance(value, list) else None
    if keys and value and all(isinstance(item, dict) for item in value):
        for item in value:
            inner = (*path, item_name(keys, item))
            found.add((*inner, "."))
            _leaves(resource, item, inner, found)
        return
    found.add(path)


def entries(body: Body) -> dict[Owner, set[Path]]:
    """What the object says about its owners."""
    return {
        (one["manager"], one["operation"], one.get("subresource", "")): paths_in(one.get("fieldsV1") or {})
        for one in body["metadata"].get("managedFields") or []
    }


def paths_in(fields: Body, path: Path = ()) -> set[Path]:
    found: set[Path] = set()
    for key, inner in fields.items():
        name = key if key.startswith("k:") or key == "." else key.removeprefix("f:")
        found |= paths_in(inner, (*path, name)) if inner else {(*path, name)}
    return found


def write_entries(resource: Resource, body: Body, owned: dict[Owner, set[Path]]) -> None:
    """Note the owners in the object; who owns nothing any more is left out, and times are kept where nothing changed."""
    times = {
        (one["manager"], one["operation"], one.get("subresource", "")): one
        for one in body["metadata"].get("managedFields") or []
    }
    managed = []
    for owner, paths in owned.items():
        if not paths:
            continue
        old = times.get(owner)
        kept = old["time"] if old and paths_in(old.get("fieldsV1") or {}) == paths else stamp()
        manager, operation, subresource = owner
        managed.append(
            {
                "manager": manager,
                "operation": operation,
                "apiVersion": resource.api_version,
                "time": kept,
                "fieldsType": "FieldsV1",
                "fieldsV1": _tree(paths),
                **({"subresource": subresource} if subresource else {}),
            }
        )
    if managed:
        body["metadata"]["managedFields"] = managed
    else:
        body["metadata"].pop("managedFields", None)


def _tree(paths: set[Path]) -> Body:
    tree: Body = {}
    for path in sorted(paths):
        here = tree
        for step in path:
            here = here.setdefault(step if step.startswith("k:") or step == "." else f"f:{step}", {})
    return tree


def track_update(resource: Resource, old: Body, new: Body, manager: str, subresource: str) -> None:
    """Give the fields that a plain write changed to its manager, if anybody ever applied this object."""
    if not old["metadata"].get("managedFields") or subresource:
        return
    before, after = _values(resource, old), _values(resource, new)
    changed = {path for path in after if path not in before or before[path] != after[path]}
    gone = set(before) - set(after)
    owned = {owner: paths - gone - changed for owner, paths in entries(old).items()}
    mine = (manager, "Update", "")
    owned[mine] = owned.get(mine, set()) | changed
    write_entries(resource, new, owned)


def _values(resource: Resource, body: Body) -> dict[Path, Any]:
    return {path: value_at(resource, body, path) for path in fields_of(resource, body)}


def value_at(resource: Resource, body: Any, path: Path) -> Any:
    """The value of a field; None where it is not there."""
    here = body
    names: Path = ()
    for step in path:
        if step == ".":
            return True
        if step.startswith("k:"):
            keys = list_keys(resource, names) or ()
            here = next((item for item in here or [] if item_name(keys, item) == step), None)
        else:
            here, names = (here.get(step) if isinstance(here, dict) else None), (*names, step)
        if here is None:
            return None
    return here
