"""A sensor on a job's phase and conditions."""

from __future__ import annotations

from typing import Any

from rallypoint.provider.sensing.conditions import StateCondition
from rallypoint.sensors.base import JobSensor

__all__ = ["JobStateSensor"]


class JobStateSensor(JobSensor):
    """Wait until a job is in a phase, or one of its conditions has a value; end as soon as it can no longer come there.

    :param phase: `Suspended`, `Resuming`, `Running`, `Resetting`, `Suspending`, `Succeeded`, `Failed`, or `Ended` for either
        end; by default `Succeeded` where no condition is asked for.
    :param condition: in the place of a phase: `QuotaReserved`, `ResourcesDeployed`, `PodsReady`, `Unhealthy` or
        `DeletingResources`.
    :param condition_value: which value of the condition.
    :param stable_for: seconds for which it has to be so without a break.

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
