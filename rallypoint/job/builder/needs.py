"""Convert the arguments of `resource(...)` (DLRover's names) to `instance_resources` of a role. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.job.errors import show
from rallypoint.job.rules import SHARE
from rallypoint.job.values import RefusedError, read_whole

__all__ = ["read_needs"]

#: DLRover's words, by the one that is used here.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "memory": ("memory", "mem"),
    "disk": ("disk",),
    "gpu": ("accelerator", "acc", "gpu"),
    "user_defined": ("user_defined", "ud_resource"),
}
_FIELDS = {"cpu": "cpu", "memory": "memory", "disk": "disk", "gpu": "gpus", "user_defined": "user_defined"}
_KNOWN = {name: ours for ours, names in _NAMES.items() for name in names}


def read_needs(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the fields of `instance_resources`, and problems as (key, text); memory and disk are in MiB."""
    found: dict[str, Any] = {}
    said: dict[str, tuple[str, Any]] = {}
    wrong: list[tuple[str, str]] = []
    for key, value in given.items():
        ours = _KNOWN.get(key)
        if ours is None:
            wrong.append((key, f"is not a known resource{_hint(key)}"))
        elif ours in said and said[ours][1] != value:
            other, known = said[ours]
            told = f"expected the value of {other} ({known}), which is the same resource, or no value"
            wrong.append((key, f"{show(value)} is not allowed; {told}"))
        else:
            said[ours] = (key, value)
            wrong += [(key, text) for text in _put(found, ours, value)]
    return found, wrong


def _hint(key: str) -> str:
    near = difflib.get_close_matches(key, _KNOWN, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(_KNOWN)}"


def _put(found: dict[str, Any], ours: str, value: Any) -> Iterator[str]:
    field = _FIELDS[ours]
    if ours in {"memory", "disk"}:
        try:
            found[field] = f"{_natural(value)}Mi"
        except RefusedError:
            yield f"{show(value)} is not allowed; expected a whole number of MiB, 0 or more"
    elif ours == "gpu":
        try:
            found[field] = SHARE.write(SHARE.read(value))
        except RefusedError:
            yield f"{show(value)} is not allowed; expected {SHARE.allowed}"
    else:
        found[field] = value  # the field of the job has the rule


def _natural(value: Any) -> int:
    number = read_whole(value)
    if number < 0:
        raise RefusedError
    return number
