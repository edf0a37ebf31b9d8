"""Conditions as the API has them: lists of mappings, of which one is replaced without touching the others. Pure."""

from __future__ import annotations

from typing import Any

from tests.emulator.controllers.times import read_time, write_time

__all__ = ["find", "holds", "since", "with_condition"]

Conditions = list[dict[str, Any]]


def find(conditions: Conditions, kind: str) -> dict[str, Any] | None:
    """Return the condition of a type, or None where it was never set."""
    return next((condition for condition in conditions if condition["type"] == kind), None)


def holds(conditions: Conditions, kind: str) -> bool:
    """Return whether a condition is `True`."""
    found = find(conditions, kind)
    return found is not None and found["status"] == "True"


def since(conditions: Conditions, kind: str, default: float) -> float:
    """Return when a condition took its status, in seconds since the epoch; `default` for one that was never set."""
    found = find(conditions, kind)
    return default if found is None else read_time(found["lastTransitionTime"])


def with_condition(conditions: Conditions, kind: str, reason: str, *, value: bool, now: float, message: str = "") -> Conditions:
    """Return the conditions with one of them set; its transition time moves only with its status."""
    status = "True" if value else "False"
    found = find(conditions, kind)
    kept = found is not None and found["status"] == status
    at = found["lastTransitionTime"] if found is not None and kept else write_time(now)
    fresh = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}
    if found is None:
        return [*conditions, fresh]
    return [fresh if condition is found else condition for condition in conditions]
