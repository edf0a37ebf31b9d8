"""A sensor on what a job's script reports."""

from __future__ import annotations

from typing import Any

from rallypoint.provider.errors import OptionError
from rallypoint.provider.sensing.conditions import ProgressCondition
from rallypoint.sensors.base import JobSensor

__all__ = ["ProgressSensor"]


class ProgressSensor(JobSensor):
    """Wait for a step, for a metric to cross a value, or for a standstill: exactly one of the three.

    It needs a script that calls `rallypoint.training.report_progress`; what another one does is not known, and waited for.

    :param min_step: a step of at least this was reported.
    :param metric: name of a metric that was last reported as `above` or more, or as `below` or less.
    :param above: value that the metric has to reach from below.
    :param below: value that the metric has to reach from above.
    :param no_progress_for: seconds for which no step above the highest one was reported; after a restart the steps that are
        trained again are no progress.

    All other arguments are those of `rallypoint.sensors.base.JobSensor`. Pushes `job`, `uid`, `phase`, `round`, `nodes`,
    `world_size`, `step` and `metrics`.
    """

    def __init__(
        self,
        *,
        min_step: int | None = None,
        metric: str | None = None,
        above: float | None = None,
        below: float | None = None,
        no_progress_for: float | None = None,
        **kwargs: Any,
    ) -> None:
        if min_step is not None and not min_step:
            raise OptionError("min_step", min_step, "a whole number of 1 or more")
        if no_progress_for is not None and not no_progress_for:
            raise OptionError("no_progress_for", no_progress_for, "a number of seconds above 0")
        judged = ProgressCondition(
            min_step=min_step or 0, metric=metric or "", above=above, below=below, no_progress_for=no_progress_for or 0.0
        )
        super().__init__(condition=judged, **kwargs)
        self.min_step = min_step
        self.metric = metric
        self.above = above
        self.below = below
        self.no_progress_for = no_progress_for
