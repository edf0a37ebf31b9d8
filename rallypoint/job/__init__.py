"""What the user asked for, checked before anything starts, and compiled to the plan that is run."""

from __future__ import annotations

from rallypoint.job.compile import compile_plan
from rallypoint.job.duration import parse_duration
from rallypoint.job.errors import JobError
from rallypoint.job.load import load_job
from rallypoint.job.model import ElasticJob
from rallypoint.job.role import Role

__all__ = ["ElasticJob", "JobError", "Role", "compile_plan", "load_job", "parse_duration"]
