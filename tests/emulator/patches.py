"""Two ways to say what shall change: JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

from typing import Any

from tests.emulator.bodies import clone
from tests.emulator.errors import ApiError, bad_request

__all__ = ["json_patch", "merge_patch"]


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` with what `patch` says: null takes a key away, lists are replaced."""
    if not isinstance(patch, dict):
        return clone(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: Any, operations: Any) -> Any:
    """`target` after all operations; one that cannot be done refuses the whole, a `test` that fails with 422."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    value = clone(target)
    for operation in operations:
        value = _perform(value, operation)
    return value


def _perform(value: Any, operation: dict[str, Any]) -> Any:
    op, path = operation.get("op"), _steps(operation.get("path", ""))
    if op == "add":
        return _add(value, path, clone(operation.get("value")))
    if op == "remove":
        return _remove(value, path)
    if op == "replace":
        _get(value, path)
        return _add(_remove(value, path), path, clone(operation.get("value"))) if path else clone(operation.get("value"))
    if op == "move":
        source = _steps(operation["from"])
        moved = _get(value, source)
        return _add(_remove(value, source), path, moved)
    if op == "copy":
        return _add(value, path, clone(_get(value, _steps(operation["from"]))))
    if op == "test":
        if _get(value, path) != operation.get("value"):
            raise _refused(f"testing value {operation['path']} failed")
        return value
    raise bad_request(f"unexpected kind of JSON patch operation: {op!r}")


def _refused(why: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise bad_request(f"a JSON pointer begins with /: {pointer!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _get(value: Any, path: list[str]) -> Any:
    for step in path:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise _refused(f"/{'/'.join(path)} does not exist") from None
    return value


def _add(value: Any, path: list[str], new: Any) -> Any:
    if not path:
        return new
    parent, last = _get(value, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = new
    elif isinstance(parent, list):
        where = len(parent) if last == "-" else int(last) if last.isdigit() else -1
        if not 0 <= where <= len(parent):
            raise _refused(f"/{'/'.join(path)} is outside of the list")
        parent.insert(where, new)
    else:
        raise _refused(f"/{'/'.join(path)} has no place")
    return value


def _remove(value: Any, path: list[str]) -> Any:
    if not path:
        return None
    _get(value, path)
    parent, last = _get(value, path[:-1]), path[-1]
    if isinstance(parent, list):
        del parent[int(last)]
    else:
        del parent[last]
    return value
