"""OpenLineage data of a finished job. Pure: the classes of OpenLineage are an argument, because its packages are optional."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FACET", "Library", "lineage_of", "place_of_file"]

#: The run facet's name.
FACET = "rallypoint_job"

#: Fields of the facet, from the summary of a job (`rallypoint.report.summary.summarize`).
_FIELDS = (
    "job",
    "uid",
    "phase",
    "attempts",
    "faults",
    "restarts",
    "steps_lost",
    "step",
    "metrics",
    "checkpoint",
    "resumed_from",
    "world_size",
    "duration",
)


@dataclass(frozen=True, kw_only=True)
class Library:
    """Constructors for Airflow's OpenLineage provider; see `rallypoint.operators.reporting.open_library`."""

    lineage: Callable[..., Any]
    dataset: Callable[..., Any]
    facet: Callable[..., Any]


def lineage_of(summary: Mapping[str, Any], *, library: Library, with_output: bool = True) -> Any:
    """Return an `OperatorLineage` with the checkpoint as output and a run facet with the summary.

    `with_output`: whether the checkpoint is an output; False if the task has outlets of its own.
    """
    checkpoint = summary.get("checkpoint") or ""
    outputs = []
    if checkpoint and with_output:
        namespace, name = place_of_file(checkpoint)
        outputs.append(library.dataset(namespace=namespace, name=name))
    facets = {FACET: library.facet(**{field: summary.get(field) for field in _FIELDS})} if summary else {}
    return library.lineage(outputs=outputs, run_facets=facets)


def place_of_file(path: str) -> tuple[str, str]:
    """Return the OpenLineage namespace and name of a path or object-store URL.

    >>> place_of_file("/data/run/step-300"), place_of_file("s3://models/run/step-300")
    (('file', '/data/run/step-300'), ('s3://models', 'run/step-300'))
    """
    try:
        parts = urllib.parse.urlsplit(path)
    except ValueError:  # a script may report any text
        return "file", path
    if parts.scheme in ("", "file"):
        return "file", parts.path if parts.scheme else path
    # Credentials in the URL are not part of the name.
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path.lstrip("/")
