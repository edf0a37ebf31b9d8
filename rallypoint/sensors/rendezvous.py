"""A sensor on a job's rendezvous."""

from __future__ import annotations

from typing import Any

from rallypoint.provider.errors import OptionError
from rallypoint.provider.sensing.conditions import RendezvousCondition
from rallypoint.sensors.base import JobSensor

__all__ = ["RendezvousSensor"]


class RendezvousSensor(JobSensor):
    """Wait until a round of a job is complete and trains; or with `missing_for` until members of it have been missing for a
    while.

    :param min_nodes: nodes of the round; by default 1, and with `missing_for` all nodes that the job would have.
    :param min_world_size: ranks of the round; by default any number.
    :param stable_for: seconds for which one and the same world has to train.
    :param missing_for: seconds for which fewer nodes or ranks have to train, in an attempt that had a round before.

    All other arguments are those of `rallypoint.sensors.base.JobSensor`. Pushes `job`, `uid`, `phase`, `round`, `nodes` and
    `world_size`, with `missing_for` also `missing`: the numbers of the nodes that are not in the round.
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
