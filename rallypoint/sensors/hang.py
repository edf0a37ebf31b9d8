"""A sensor on training that does not go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rallypoint.provider.errors import JobHangs, one_of
from rallypoint.provider.sensing.conditions import HangCondition
from rallypoint.sensors.base import JobSensor

if TYPE_CHECKING:
    from rallypoint.provider.sensing.finding import Finding

__all__ = ["HangSensor"]


class HangSensor(JobSensor):
    """Wait until the coordinator doubts that a job goes on, or has judged that it does not (`health.hang_downtime`).

    A hang that was healed meanwhile counts, in every attempt of the present run.

    :param level: `verdict`, or `doubt`, which is told after half of the time.
    :param on_hang: what the task does then: `fail`; `succeed`; or `evidence`, which succeeds and returns all that is kept of
        the hang.
    :param on_job_end: what it does when the job ends without a hang: `fail`, `skip` or `succeed`. By default a guard that
        fails at a hang succeeds, and what waits for a hang to act on it is skipped.

    All other arguments are those of `rallypoint.sensors.base.JobSensor`. Pushes `job`, `uid`, `phase`, `round`, `nodes`,
    `world_size`, `hang` (`doubt`, `verdict` or ""), `culprits` (ranks), and with `evidence` also `evidence`.
    """

    def __init__(self, *, level: str = "verdict", on_hang: str = "fail", on_job_end: str | None = None, **kwargs: Any) -> None:
        one_of("on_hang", on_hang, ("fail", "succeed", "evidence"))
        judged = HangCondition(level=level, evidence=on_hang == "evidence")
        end = ("succeed" if on_hang == "fail" else "skip") if on_job_end is None else on_job_end
        super().__init__(condition=judged, on_job_end=end, **kwargs)
        self.level = level
        self.on_hang = on_hang

    def conclude(self, finding: Finding) -> None:
        """Fail, if that is what was asked for."""
        if self.on_hang == "fail":
            raise JobHangs(finding.text)
