"""What the downward API tells a container of its own pod."""

from __future__ import annotations

import math
import re

from tests.emulator.bodies import Body
from tests.emulator.quantities import quantity

__all__ = ["field_value", "resource_value"]

SIMPLE = {
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.podIP",
}
_KEYED = re.compile(r"metadata\.(labels|annotations)(?:\['([^']+)'\])?")


def field_value(pod: Body, path: str) -> str:
    """The value of a fieldPath; ValueError where there is no such field for containers."""
    if path == "status.podIPs":
        path = "status.podIP"
    if path in SIMPLE:
        section, _, name = path.partition(".")
        return str((pod.get(section) or {}).get(name) or "")
    if found := _KEYED.fullmatch(path):
        values = pod["metadata"].get(found[1]) or {}
        if found[2]:
            return str(values.get(found[2], ""))
        return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
    raise ValueError(f"field label not supported: {path}")


def resource_value(pod: Body, container: Body | None, reference: Body) -> str:
    """The value of a resourceFieldRef (`limits.cpu`), in units of its divisor, rounded up as the kubelet does."""
    name = reference.get("containerName")
    owner = container or next(one for one in pod["spec"]["containers"] if one["name"] == name)
    section, _, what = reference["resource"].partition(".")
    amount = quantity(((owner.get("resources") or {}).get(section) or {}).get(what)) or 0.0
    return str(math.ceil(amount / (quantity(reference.get("divisor")) or 1.0)))
