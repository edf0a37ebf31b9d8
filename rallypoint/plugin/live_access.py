"""Jobs that the API server reads itself, and how.

The API server has the key that signs Airflow's tokens, so neither tasks nor editors of connections may choose what it opens
(SECURITY.md). It reads

- jobs of its own machine, in its own `$RALLYPOINT_HOME`, and
- jobs of a connection that the administrator lists in `[rallypoint] ui_connections`, with in-cluster credentials or a static
  token.

Other jobs are shown as published by their tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.backends.site import KUBERNETES, LOCAL, RAY
from rallypoint.provider import backend_access
from rallypoint.provider.place import Place

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["LiveAccess", "NotLiveError", "open_live"]

OPTION = "[rallypoint] ui_connections"


class NotLiveError(Exception):
    """The API server does not read the jobs of a place; the message explains why."""


@dataclass(frozen=True, kw_only=True)
class LiveAccess:
    """Access that the administrator allows.

    Attributes:
        connections: ids of connections that the API server may open.
        home: the API server's own folder of local jobs.
    """

    connections: frozenset[str] = frozenset()
    home: Path

    @classmethod
    def configured(cls) -> LiveAccess:
        """Return the access from the Airflow configuration and environment of this process."""
        from airflow.sdk import conf  # noqa: PLC0415  an API server has it already

        from rallypoint.backends.registry import default_home  # noqa: PLC0415  brings pydantic

        listed = conf.get("rallypoint", "ui_connections", fallback="") or ""
        names = (name.strip() for name in listed.split(","))
        return cls(connections=frozenset(name for name in names if name), home=default_home())

    def allowed(self, place: Place) -> Place:
        """Return the part of a stored place that may be opened. Pure; raises `NotLiveError`.

        Paths are omitted, because the task has chosen them.
        """
        kind = place.backend or ("" if place.conn_id else LOCAL)
        if kind == LOCAL:
            return self._local(place)
        if place.kubeconfig:
            raise NotLiveError(
                "This tab shows only the data that the task published, no live data: "
                "the task has its own kubeconfig, which Airflow's API server does not read."
            )
        if place.conn_id not in self.connections:
            how = f"connection {place.conn_id!r} is not in {OPTION}" if place.conn_id else "the task uses no connection"
            raise NotLiveError(
                f"This tab shows only the data that the task published, no live data: {how}. "
                f"An administrator can add a connection to the option {OPTION}."
            )
        if kind not in ("", KUBERNETES, RAY):
            raise NotLiveError(
                f"This tab shows only the data that the task published, no live data: backend {kind!r} is unknown."
            )
        return Place(backend=kind, conn_id=place.conn_id, namespace=place.namespace)

    def _local(self, place: Place) -> Place:
        if place.home and Path(place.home) != self.home:
            raise NotLiveError(
                "This tab shows only the data that the task published, no live data: "
                "$RALLYPOINT_HOME of the task is not the folder that Airflow's API server uses."
            )
        return Place(backend=LOCAL)


def open_live(place: Place) -> Backend:
    """Return the backend of a place that `LiveAccess.allowed` returned. Blocks; raises `BackendError`."""
    from rallypoint.backends import registry  # noqa: PLC0415  as above

    if place.backend == LOCAL:
        from rallypoint.backends.local.backend import LocalBackend  # noqa: PLC0415  as above

        return LocalBackend(registry.default_home(), own_folders=True)
    located = backend_access.resolve(place)
    site, credentials = registry.static_access(located.site, located.credentials)
    if site.kind == LOCAL:  # an edited connection
        return open_live(Place(backend=LOCAL))
    return registry.open_site(site, credentials)
