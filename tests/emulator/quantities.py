"""Amounts of resources: "500m", "2Gi", "1e3"."""

from __future__ import annotations

import re

from tests.emulator.bodies import Body

__all__ = ["quantity", "requests_of"]

_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS.update({f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)})
_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkKMGTPE]i?)?)")


def quantity(value: object) -> float | None:
    """The amount as a number; None where there is none, or where it is none that the API would accept."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if not found or (found[3] or "") not in _UNITS:
        return None
    return float(found[1] + (found[2] or "")) * _UNITS[found[3] or ""]


def requests_of(spec: Body) -> dict[str, float]:
    """What a pod asks of its node: the sum of its containers and sidecars, or the largest init container where that is more.

    A limit without a request is a request, as the API server's defaults make it.
    """
    running: dict[str, float] = {}
    peak: dict[str, float] = {}
    for container in spec.get("initContainers") or []:
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            running = _sum(running, asked)
            asked = {}
        for name, amount in _sum(running, asked).items():
            peak[name] = max(peak.get(name, 0.0), amount)
    for container in spec.get("containers") or []:
        running = _sum(running, _asked(container))
    return {name: max(running.get(name, 0.0), peak.get(name, 0.0)) for name in {*running, *peak}}


def _asked(container: Body) -> dict[str, float]:
    resources = container.get("resources") or {}
    listed = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(value) or 0.0 for name, value in listed.items()}


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {*one, *other}}
