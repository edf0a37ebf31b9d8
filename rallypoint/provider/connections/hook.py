"""`RallypointHook`: a connection of type `rallypoint` for custom tasks, and its test."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from rallypoint.backends.site import LOCAL, RAY
from rallypoint.provider import backend_access
from rallypoint.provider.connections.connection import CONN_TYPE
from rallypoint.provider.connections.locating import Located
from rallypoint.provider.place import Place
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend
    from rallypoint.backends.findings import Findings

__all__ = ["RallypointHook"]


class RallypointHook(BaseHook):
    """Hook for the place of jobs that a connection describes.

    :param conn_id: a connection of type `rallypoint` or `kubernetes`.
    :param patience: seconds that a test of the connection may take: the *Test* button keeps a thread of the API server busy.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "rallypoint_default"
    conn_type = CONN_TYPE
    hook_name = "Rallypoint"

    def __init__(self, conn_id: str = default_conn_name, *, patience: float = 15.0) -> None:
        super().__init__()
        self.conn_id, self.patience = conn_id, patience

    def locate(self) -> Located:
        """Return the present location of the connection; raises `BackendError`. It may contain secrets: do not store it."""
        return backend_access.resolve(Place(conn_id=self.conn_id))

    def get_conn(self) -> Backend:
        """Return the backend of the connection; `await close()` it. Raises `BackendError`."""
        return backend_access.open_backend(Place(conn_id=self.conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Check everything that a job needs, and return the problems, one sentence each; creates nothing."""
        try:
            located = self.locate()
        except RallypointError as error:
            return False, str(error)
        try:
            found = self.examine(located)
        except RallypointError as error:
            return False, str(error)
        except TimeoutError:
            return False, f"{_whose(located)} did not answer all requests within {self.patience:g} s"
        return found.fine, found.told(_whereabouts(located))

    def examine(self, located: Located) -> Findings:
        """Return the problems of a place; raises `BackendError`, and `TimeoutError` after `patience` seconds."""
        from rallypoint.backends import registry  # noqa: PLC0415  brings pydantic

        limited = asyncio.wait_for(registry.examine(located.site, located.credentials), self.patience)
        # In a separate thread, because the caller may run an event loop in this thread.
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(asyncio.run, limited).result()


def _whose(located: Located) -> str:
    site = located.site
    if site.kind == LOCAL:
        return "This machine"
    return f"The Ray cluster at {site.address}" if site.kind == RAY else "The API server of the cluster"


def _whereabouts(located: Located) -> str:
    site = located.site
    if site.kind == LOCAL:
        return f"Connection works: jobs run on this machine{f', in {site.home}' if site.home else ''}"
    if site.kind == RAY:
        where = f", in namespace {site.namespace}" if site.namespace else ""
        return f"Connection works: jobs run on the Ray cluster at {site.address}{where}"
    return f"Connection works: jobs run on the cluster{f', in namespace {site.namespace}' if site.namespace else ''}"
