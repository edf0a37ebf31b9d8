"""Are the quantities of a role possible? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.backends.kubernetes.manifests.checks.place import Place, Wrong
from rallypoint.backends.kubernetes.manifests.resources import device_resource
from rallypoint.job import Role
from rallypoint.job.quantity import quantity

__all__ = ["check"]

_LEAST_MEMORY = 2**20


def check(place: Place, role: Role) -> Iterator[Wrong]:
    """Yield each quantity that Kubernetes refuses or that cannot be meant."""
    at, asked = place.at("resources"), role.resources
    for name in ("cpu", "memory"):
        request, limit = getattr(asked, name), getattr(asked, f"{name}_limit")
        if request and limit and quantity(limit) < quantity(request):
            yield at.at(f"{name}_limit").refused(limit, f"at least resources.{name} ({request})")
    for name in ("memory", "memory_limit", "shm"):
        text = getattr(asked, name)
        if text and quantity(text) < _LEAST_MEMORY:
            yield at.at(name).refused(text, "a number of bytes of 1Mi or more, such as 512Mi or 8Gi")
    for name in ("cpu", "cpu_limit"):
        text = getattr(asked, name)
        if text and (quantity(text) * 1000).denominator != 1:
            yield at.at(name).refused(text, "a multiple of 1m (a thousandth of a core)")
        if text and not quantity(text):
            yield at.at(name).refused(text, "more than 0 cores")
    yield from _whole_devices(at, role)


def _whole_devices(at: Place, role: Role) -> Iterator[Wrong]:
    asked = role.resources
    for name, text in asked.extended.items():
        if "/" in name and quantity(text).denominator != 1:
            yield at.at("extended", name).refused(text, "a whole number; devices cannot be shared")
    if asked.gpus and role.accelerator == "cpu":
        yield at.at("gpus").refused(asked.gpus, "0 with accelerator cpu")
    name = device_resource(role)
    if asked.gpus and name in asked.extended:
        yield at.at("extended", name).refused(
            asked.extended[name], f"no value here, because resources.gpus ({asked.gpus}) sets it"
        )
