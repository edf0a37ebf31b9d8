"""`ProgressSensor`: wait for the progress of a job."""

from __future__ import annotations

from typing import Any

from rallypoint.provider.errors import OptionError
from rallypoint.provider.sensing.conditions import ProgressCondition
from rallypoint.sensors.base import JobSensor

__all__ = ["ProgressSensor"]


class ProgressSensor(JobSensor):
    """Wait for a training step, a metric value, or a lack of progress; exactly one of the three.

    The script must call `rallypoint.training.report_progress`. Without reports the sensor keeps waiting.

    :param min_step: wait for this step or a later one.
    :param metric: name of a metric; wait until its last value is at least `above` or at most `below`.
    :param above: lower bound of the metric.
    :param below: upper bound of the metric.
    :param no_progress_for: seconds without a new highest step; steps repeated after a restart are not progress.

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
