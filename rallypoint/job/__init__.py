"""The job of a user: validated before anything starts, and compiled to the plan that is run.

Names are loaded on first use, because the specs of optional capabilities import the base class before the models exist.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.job.compile import compile_plan
    from rallypoint.job.duration import parse_duration
    from rallypoint.job.errors import JobError
    from rallypoint.job.model import ElasticJob, load_job
    from rallypoint.job.role import Role

__all__ = ["ElasticJob", "JobError", "Role", "compile_plan", "load_job", "parse_duration"]

_MODULES = {
    "ElasticJob": "model",
    "JobError": "errors",
    "Role": "role",
    "compile_plan": "compile",
    "load_job": "model",
    "parse_duration": "duration",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
