"""The ways from Airflow to the backends. Nothing is imported before somebody goes through."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend
    from rallypoint.backends.site import Site
    from rallypoint.provider.claim import Claim

__all__ = ["open_backend", "spawn_supervisor"]


def open_backend(site: Site) -> Backend:
    """Return the backend that holds the jobs of a site. May read files."""
    from rallypoint.backends import registry  # noqa: PLC0415  jobs bring pydantic, and a DAG file only names the operator

    return registry.open_site(site)


def spawn_supervisor(claim: Claim) -> None:
    """Leave a supervisor of its own behind, which outlives this process and sees the job to its end or its deletion.

    It is a process of this machine, or a pod beside the job where the claim names an image for it. Blocks, in a thread without
    an event loop.
    """
    from rallypoint.backends import registry  # noqa: PLC0415  as above

    if claim.supervisor_image:
        pods = registry.supervisor_pods(claim.site, image=claim.supervisor_image)
        asyncio.run(pods.leave(claim.name))
    else:
        registry.spawn_supervisor(claim.name, claim.site)
