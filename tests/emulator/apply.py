"""Server-side apply: each manager says which fields it wants, and fields of others are not overwritten unless forced."""

from __future__ import annotations

from typing import Any

from tests.emulator.bodies import Body, clone
from tests.emulator.errors import ApiError
from tests.emulator.managed import BEFORE, Owner, Path, entries, fields_of, item_name, list_keys, value_at, write_entries
from tests.emulator.resources import Resource

__all__ = ["applied"]


def applied(resource: Resource, old: Body | None, wanted: Body, manager: str, *, force: bool) -> Body:
    """The object after `manager` applied `wanted`, with its managedFields; 409 with all conflicts where others disagree."""
    me: Owner = (manager, "Apply", "")
    mine = fields_of(resource, wanted)
    if old is None:
        new = clone(wanted)
        write_entries(resource, new, {me: mine})
        return new
    owned = entries(old) or {(BEFORE, "Update", ""): fields_of(resource, old)}
    others = {owner: paths for owner, paths in owned.items() if owner != me}
    conflicts = [
        (owner, path)
        for owner, paths in others.items()
        for path in sorted(paths & mine)
        if value_at(resource, old, path) != value_at(resource, wanted, path)
    ]
    if conflicts and not force:
        raise _refused(conflicts)
    lost = {path for _, path in conflicts}
    others = {owner: paths - lost for owner, paths in others.items()}
    kept = set().union(*others.values())
    new = clone(old)
    for path in sorted(owned.get(me, set()) - mine - kept, reverse=True):
        _take_away(resource, new, path)
    new = _merged(resource, new, {key: value for key, value in wanted.items() if key != "status"}, ())
    write_entries(resource, new, {**others, me: mine})
    return new


def _refused(conflicts: list[tuple[Owner, Path]]) -> ApiError:
    told = [(owner[0], "." + ".".join(step for step in path if step != ".")) for owner, path in conflicts]
    causes = [{"reason": "FieldManagerConflict", "message": f'conflict with "{who}"', "field": field} for who, field in told]
    listed = ", ".join(f'conflict with "{who}": {field}' for who, field in told)
    word = "conflict" if len(told) == 1 else "conflicts"
    return ApiError(409, "Conflict", f"Apply failed with {len(told)} {word}: {listed}", details={"causes": causes})


def _merged(resource: Resource, target: Any, patch: Any, path: Path) -> Any:
    if isinstance(patch, dict) and isinstance(target, dict):
        merged = dict(target)
        for key, value in patch.items():
            if value is not None and (path, key) != (("metadata",), "managedFields"):
                merged[key] = _merged(resource, target.get(key), value, (*path, key))
        return merged
    keys = list_keys(resource, path) if isinstance(patch, list) else None
    if not keys or not isinstance(target, list):
        return clone(patch)
    items = list(target)
    for item in patch:
        name = item_name(keys, item)
        same = next((index for index, other in enumerate(items) if item_name(keys, other) == name), None)
        if same is None:
            items.append(clone(item))
        else:
            items[same] = _merged(resource, items[same], item, (*path, name))
    return items


def _take_away(resource: Resource, body: Any, path: Path) -> None:
    """Remove what nobody wants any more: a field, or with "." an item of a list that has nothing left but its keys."""
    if path[-1] == ".":
        *above, name, _ = path
        items = value_at(resource, body, tuple(above))
        keys = list_keys(resource, tuple(above)) or ()
        if isinstance(items, list):
            items[:] = [item for item in items if item_name(keys, item) != name or set(item) - set(keys)]
        return
    parent = value_at(resource, body, path[:-1]) if path[:-1] else body
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
