"""The settings of the node check in a job document, and in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rallypoint.job.part import Model

__all__ = ["FIELDS", "plan_fields"]

#: Fields that the capability adds to blocks of the job document: those of DLRover's arguments are in `job.policies.Health`.
FIELDS: Mapping[str, type[Model]] = {}


def plan_fields(job: Any, _role: Model) -> dict[str, Any]:
    """Return the fields of a role's plan."""
    return {
        "check_level": job.health.check_level,
        "check_timeout": job.health.precheck_timeout,
        "check_all_pairs": job.health.precheck_all_pairs,
        "check_only": job.health.precheck_only,
        "check_program": job.health.precheck_program,
        "exclude_straggler": job.health.exclude_straggler,
    }
