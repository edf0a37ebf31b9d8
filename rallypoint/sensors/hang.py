"""`HangSensor`: wait for a hang of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rallypoint.provider.errors import JobHangs, one_of
from rallypoint.provider.sensing.conditions import HangCondition
from rallypoint.sensors.base import JobSensor

if TYPE_CHECKING:
    from rallypoint.provider.sensing.finding import Finding

__all__ = ["HangSensor"]


class HangSensor(JobSensor):
    """Wait until the coordinator suspects or confirms a hang of a job (`health.hang_downtime`).

    A hang from which the job has already recovered counts, too, in every attempt of the current run.

    :param level: `verdict`: wait for a confirmed hang; `doubt`: wait for a suspected hang (after half of the time limit).
    :param on_hang: result of the task on a hang: `fail`; `succeed`; or `evidence`, which succeeds and returns the evidence.
    :param on_job_end: result if the job ends without a hang: `fail`, `skip` or `succeed`. Default: `succeed` if `on_hang` is
        `fail`, else `skip`.

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
        """Fail if `on_hang` is `fail`."""
        if self.on_hang == "fail":
            raise JobHangs(finding.text)
