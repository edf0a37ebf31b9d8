"""Hang detection in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rallypoint.job.part import Model

__all__ = ["FIELDS", "plan_fields"]

#: Fields that the capability adds to blocks of the job document: those of DLRover's arguments are in `job.policies.Health`.
FIELDS: Mapping[str, type[Model]] = {}


def plan_fields(job: Any, _role: Model) -> dict[str, Any]:
    """Return the fields of a role's plan."""
    return {name: getattr(job.health, name) for name in ("hang_downtime", "hang_detection", "hang_learning")}
