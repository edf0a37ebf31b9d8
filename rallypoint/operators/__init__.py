"""Airflow operators for elastic training jobs, and the retry policy of their tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rallypoint.operators.appwrapper import AppWrapperOperator
from rallypoint.operators.check import NodeCheckOperator
from rallypoint.operators.delete import DeleteJobOperator
from rallypoint.operators.resize import ResizeJobOperator
from rallypoint.operators.training import ElasticTrainingOperator

if TYPE_CHECKING:
    from rallypoint.provider.retry_policy import TrainingRetryPolicy

__all__ = [
    "AppWrapperOperator",
    "DeleteJobOperator",
    "ElasticTrainingOperator",
    "NodeCheckOperator",
    "ResizeJobOperator",
    "TrainingRetryPolicy",
]


def __getattr__(name: str) -> Any:
    if name != "TrainingRetryPolicy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # It imports a part of Airflow's SDK that operators do not need.
    from rallypoint.provider.retry_policy import TrainingRetryPolicy  # noqa: PLC0415

    return TrainingRetryPolicy
