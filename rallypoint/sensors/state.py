"""`JobStateSensor`: wait for a phase or condition of a job."""

from __future__ import annotations

from typing import Any

from rallypoint.provider.sensing.conditions import StateCondition
from rallypoint.sensors.base import JobSensor

__all__ = ["JobStateSensor"]


class JobStateSensor(JobSensor):
    """Wait until a job is in a phase or a condition has a value; end early if this has become impossible.

    :param phase: `Suspended`, `Resuming`, `Running`, `Resetting`, `Suspending`, `Succeeded`, `Failed`, or `Ended` for
        `Succeeded` or `Failed`. Default: `Succeeded`, unless a condition is given.
    :param condition: instead of a phase: `QuotaReserved`, `ResourcesDeployed`, `PodsReady`, `Unhealthy` or
        `DeletingResources`.
    :param condition_value: expected value of the condition.
    :param stable_for: seconds for which the phase or condition must hold without a break.

    All other arguments are those of `rallypoint.sensors.base.JobSensor`. Pushes `job`, `uid`, `phase`, `round`, `nodes` and
    `world_size`.
    """

    def __init__(
        self,
        *,
        phase: str | None = None,
        condition: str | None = None,
        condition_value: bool = True,
        stable_for: float = 0.0,
        **kwargs: Any,
    ) -> None:
        wanted = "Succeeded" if phase is None and condition is None else phase
        judged = StateCondition(phase=wanted or "", condition=condition or "", value=condition_value, stable_for=stable_for)
        super().__init__(condition=judged, **kwargs)
        self.phase = phase
        self.stable_for = stable_for
