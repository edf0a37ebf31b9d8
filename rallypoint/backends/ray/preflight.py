"""What is missing for jobs on a Ray cluster, before there is one; creates nothing."""

from __future__ import annotations

from rallypoint.backends.findings import Findings
from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.dashboard import Cluster

__all__ = ["examine"]

#: The oldest version of Ray with labels of placement groups.
_OLDEST = (2, 49)


async def examine(access: Access) -> Findings:
    """Return what is missing; raises `BackendError` when the dashboard cannot be reached."""
    cluster = Cluster(access)
    try:
        version = str((await cluster.version()).get("ray_version") or "")
        await cluster.jobs()
    finally:
        await cluster.close()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return Findings(problems=(f"the cluster runs Ray {version or 'of an unknown version'}; expected {oldest} or later",))
    return Findings(
        notes=(f"the cluster runs Ray {version}", "the first submission shows whether its nodes have the package rallypoint")
    )
