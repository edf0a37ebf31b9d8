"""Jobs built by method calls, as in DLRover's unified API; see `JobBuilder`."""

from __future__ import annotations

from rallypoint.job.builder.builder import JobBuilder, RoleBuilder, TrainBuilder
from rallypoint.job.builder.job import Job
from rallypoint.job.builder.rl import RLJobBuilder

__all__ = ["DLJobBuilder", "Job", "JobBuilder", "RLJobBuilder", "RoleBuilder", "TrainBuilder"]

#: DLRover's name.
DLJobBuilder = JobBuilder
