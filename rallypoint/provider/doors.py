"""The ways from Airflow to the backends. Nothing is imported before somebody goes through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend
    from rallypoint.provider.claim import Claim

__all__ = ["open_backend", "spawn_supervisor"]


def open_backend(kind: str, home: str) -> Backend:
    """Return the backend called `kind`; `home` "" is its own default. An unknown kind is an error that lists those known."""
    from rallypoint.backends import registry  # noqa: PLC0415  jobs bring pydantic, and a DAG file only names the operator

    return registry.open_backend(kind, home=_path(home))


def spawn_supervisor(claim: Claim) -> None:
    """Leave a supervisor of its own behind, which outlives this process and sees the job to its end or its deletion."""
    from rallypoint.backends.local import detach  # noqa: PLC0415  as above
    from rallypoint.backends.registry import default_home  # noqa: PLC0415

    detach.spawn_supervisor(name=claim.name, home=_path(claim.home) or default_home())


def _path(home: str) -> Path | None:
    return Path(home).expanduser() if home else None
