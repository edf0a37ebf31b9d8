"""The only module that imports OpenLineage's classes; the import fails if they are not installed."""

from __future__ import annotations

import importlib
from typing import Any

import attrs

from rallypoint.provider.lineage import Library

__all__ = ["LIBRARY", "RallypointJobRunFacet"]

_RUN_FACET: Any = importlib.import_module("openlineage.client.facet_v2").RunFacet


@attrs.define(kw_only=True)
class RallypointJobRunFacet(_RUN_FACET):  # type: ignore[misc]
    """Summary of a training job; the fields are those of `rallypoint.report.summary.summarize`."""

    job: str
    uid: str
    phase: str
    attempts: int
    faults: int
    restarts: int
    steps_lost: int
    step: int | None
    metrics: dict[str, float]
    checkpoint: str
    resumed_from: int | None
    world_size: int
    duration: float


LIBRARY = Library(
    lineage=importlib.import_module("airflow.providers.openlineage.extractors").OperatorLineage,
    dataset=importlib.import_module("openlineage.client.event_v2").OutputDataset,
    facet=RallypointJobRunFacet,
)
