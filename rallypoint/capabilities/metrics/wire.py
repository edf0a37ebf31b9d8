"""The settings of the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire.sections import Section

__all__ = ["PlanSection"]


@dataclass(frozen=True, kw_only=True)
class PlanSection(Section, record="Plan", capability="metrics"):
    """Where the coordinator serves metrics; 0 is nowhere, None is `METRICS_PORT` in pods and nowhere else."""

    metrics_port: int | None = None
