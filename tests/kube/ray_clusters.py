"""What is read of a RayCluster that was made for a job."""

from __future__ import annotations

import json
from typing import Any

from rallypoint.job import ElasticJob, load_job
from tests.emulator.kubelet.expansion import expanded

__all__ = ["inner_job"]


def inner_job(cluster: dict[str, Any]) -> ElasticJob:
    """Return the job that the driver runs, as the variable of its container is."""
    variables = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    (text,) = (one["value"] for one in variables if one["name"] == "RALLYPOINT_RAY_JOB")
    return load_job(json.loads(expanded(text, {})), based=False)
