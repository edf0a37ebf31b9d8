"""What is read of a RayCluster that was made for a job."""

from __future__ import annotations

import json
from typing import Any

from rallypoint.job import ElasticJob, load_job

__all__ = ["inner_job"]


def inner_job(cluster: dict[str, Any]) -> ElasticJob:
    """Return the job that the driver runs; Kubernetes turns `$$(` in a variable into `$(`."""
    variables = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    (text,) = (one["value"] for one in variables if one["name"] == "RALLYPOINT_RAY_JOB")
    return load_job(json.loads(text.replace("$$(", "$(")), based=False)
