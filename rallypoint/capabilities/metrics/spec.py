"""The metrics in a job document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rallypoint.job.part import Model
from rallypoint.job.rules import whole

__all__ = ["FIELDS", "LATER", "HealthFields", "plan_fields"]


class HealthFields(Model):
    """Fields of the block `health`."""

    metrics_port: Annotated[int | None, whole(0, 65535)] = None
    """Port of the Prometheus metrics (docs/guides/metrics.md); 0 disables them. Default: 29620 in pods, otherwise 0."""


#: Fields that the capability adds to blocks of the job document.
FIELDS: Mapping[str, type[Model]] = {"health": HealthFields}

#: Fields that jobs of earlier versions did not have: with their defaults they are no part of a job's digest.
LATER: Mapping[str, tuple[str, ...]] = {"health": ("metrics_port",)}


def plan_fields(job: Any, _role: Model) -> dict[str, Any]:
    """Return the fields of a role's plan."""
    return {"metrics_port": job.health.metrics_port}
