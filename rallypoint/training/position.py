"""Where in the data a state is, as a manifest tells it: the plain entries of the state, such as a sampler's and a counter."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["position_of"]

#: Characters of JSON that one entry may have: what is longer is no position.
_LONGEST = 2000

_SCALARS = (bool, int, float, str, type(None))


def position_of(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state, as they are kept, that are nothing but short plain values."""
    found = {name: value for name, value in kept.items() if _plain(value)}
    return {name: value for name, value in found.items() if len(json.dumps(value)) <= _LONGEST}


def _plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(_plain, value))  # type: ignore[call-overload]
    return type(value) in _SCALARS and (not isinstance(value, float) or math.isfinite(value))
