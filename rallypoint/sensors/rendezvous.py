"""`RendezvousSensor`: wait for a round of a job."""

from __future__ import annotations

from typing import Any

from rallypoint.provider.errors import OptionError
from rallypoint.provider.sensing.conditions import RendezvousCondition
from rallypoint.sensors.base import JobSensor

__all__ = ["RendezvousSensor"]


class RendezvousSensor(JobSensor):
    """Wait until a round of a job trains; with `missing_for`, wait until nodes or ranks have been missing for a while.

    :param min_nodes: minimum number of nodes. Default: 1; with `missing_for`, the maximum size of the job.
    :param min_world_size: minimum number of ranks. Default: any.
    :param stable_for: seconds for which the same round must train.
    :param missing_for: seconds for which nodes or ranks must be missing, after the first round of an attempt.

    All other arguments are those of `rallypoint.sensors.base.JobSensor`. Pushes `job`, `uid`, `phase`, `round`, `nodes` and
    `world_size`, with `missing_for` also `missing` (indices of the missing nodes).
    """

    def __init__(
        self,
        *,
        min_nodes: int | None = None,
        min_world_size: int | None = None,
        stable_for: float = 0.0,
        missing_for: float | None = None,
        **kwargs: Any,
    ) -> None:
        for name, value in (("min_nodes", min_nodes), ("min_world_size", min_world_size)):
            if value is not None and not value:
                raise OptionError(name, value, "a whole number of 1 or more")
        judged = RendezvousCondition(
            min_nodes=min_nodes or 0, min_world_size=min_world_size or 0, stable_for=stable_for, missing_for=missing_for
        )
        super().__init__(condition=judged, **kwargs)
        self.min_nodes = min_nodes
        self.min_world_size = min_world_size
        self.stable_for = stable_for
        self.missing_for = missing_for
