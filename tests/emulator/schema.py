"""Structural schemas of custom resources: what is pruned, what is filled in, what is refused. CEL rules are not evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator

from tests.emulator.bodies import Body, clone
from tests.emulator.validation import Cause

__all__ = ["admission", "list_keys_of"]

#: The fields that every object has, whatever its schema says.
ENVELOPE = ("apiVersion", "kind", "metadata")


def admission(schema: Body) -> Callable[[Body], tuple[Body, list[Cause]]]:
    """Of an openAPIV3Schema: the function that prunes, fills and validates a whole object."""
    inner = {
        **schema,
        "properties": {key: value for key, value in (schema.get("properties") or {}).items() if key not in ENVELOPE},
    }
    validator = Draft202012Validator(
        _plain({**inner, "required": [key for key in inner.get("required", []) if key not in ENVELOPE]})
    )

    def admit(body: Body) -> tuple[Body, list[Cause]]:
        envelope = {key: body[key] for key in ENVELOPE if key in body}
        rest = _filled(inner, _pruned(inner, {key: value for key, value in body.items() if key not in ENVELOPE}))
        causes = [_cause(error) for error in validator.iter_errors(rest)]
        return {**envelope, **rest}, causes

    return admit


def _cause(error: Any) -> Cause:
    field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path).lstrip(".")
    return field, f"Invalid value: {error.message[:300]}"


def _plain(schema: Any) -> Any:
    """The schema as JSON Schema understands it: nullable and int-or-string said in its words, formats left out."""
    if not isinstance(schema, dict):
        return schema
    plain: Body = {}
    for key, value in schema.items():
        if key in {"properties", "patternProperties"}:
            plain[key] = {name: _plain(one) for name, one in value.items()}
        elif key in {"items", "additionalProperties", "not"}:
            plain[key] = _plain(value)
        elif key in {"anyOf", "allOf", "oneOf"}:
            plain[key] = [_plain(one) for one in value]
        elif key in {"format", "default", "nullable", "description", "example"} or key.startswith("x-kubernetes"):
            continue
        else:
            plain[key] = value
    if schema.get("x-kubernetes-int-or-string"):
        plain.pop("type", None)
        plain.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if schema.get("nullable") and "type" in plain:
        plain["type"] = [plain["type"], "null"]
    return plain


def _pruned(schema: Body, value: Any) -> Any:
    """`value` without the fields that the schema does not know, and without nulls where it allows none."""
    if isinstance(value, list):
        return [_pruned(schema.get("items") or {}, item) for item in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-embedded-resource"):
        return clone(value)
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    keep = schema.get("x-kubernetes-preserve-unknown-fields") or (more is True)
    pruned: Body = {}
    for key, item in value.items():
        inner = known.get(key) if key in known else more if isinstance(more, dict) else None
        if inner is None and not keep:
            continue
        if item is None and not (inner or {}).get("nullable"):
            continue
        pruned[key] = clone(item) if inner is None else _pruned(inner, item)
    return pruned


def _filled(schema: Body, value: Any) -> Any:
    """`value` with the schema's defaults where something is missing."""
    if isinstance(value, list):
        return [_filled(schema.get("items") or {}, item) for item in value]
    if not isinstance(value, dict):
        return value
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, inner in known.items():
        if key not in value and "default" in inner:
            value[key] = clone(inner["default"])
    for key, item in value.items():
        inner = known.get(key) or (more if isinstance(more, dict) else {})
        value[key] = _filled(inner, item)
    return value


def list_keys_of(schema: Body) -> Callable[[tuple[str, ...]], tuple[str, ...] | None]:
    """Of an openAPIV3Schema: the function that knows by which keys the list at a path of fields is merged."""

    def keys(path: tuple[str, ...]) -> tuple[str, ...] | None:
        here: Any = schema
        for step in path:
            while "items" in here:
                here = here["items"]
            here = (here.get("properties") or {}).get(step) or here.get("additionalProperties") or {}
            if not isinstance(here, dict):
                return None
        return tuple(here.get("x-kubernetes-list-map-keys") or ()) or None

    return keys
