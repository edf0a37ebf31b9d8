"""Tasks that own a training job."""

from __future__ import annotations

from rallypoint.operators.appwrapper import AppWrapperOperator
from rallypoint.operators.training import ElasticTrainingOperator

__all__ = ["AppWrapperOperator", "ElasticTrainingOperator"]
