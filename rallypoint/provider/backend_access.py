"""Open backends for Airflow. The backends are imported on first use."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from rallypoint.backends.site import Site
from rallypoint.provider.connections.connection import CONN_TYPE, Settings, read_extra, read_settings
from rallypoint.provider.connections.kubernetes_connection import CONN_TYPE as KUBERNETES_TYPE
from rallypoint.provider.connections.kubernetes_connection import KubernetesSettings, read_kubernetes
from rallypoint.provider.connections.locating import Located, PlaceError, locate
from rallypoint.provider.place import Place
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend
    from rallypoint.provider.claim import Claim

__all__ = ["in_api_server", "open_backend", "read_connection", "resolve", "spawn_supervisor"]


def open_backend(place: Place | Site) -> Backend:
    """Return the backend of the jobs of a place. Reads its connections, and may read files.

    Blocks: in a triggerer it is called in a thread. Raises `BackendError`.
    """
    from rallypoint.backends import registry  # noqa: PLC0415  jobs bring pydantic, and a DAG file only names the operator

    if isinstance(place, Site):
        return registry.open_site(place)
    located = resolve(place)
    return registry.open_site(located.site, located.credentials)


def spawn_supervisor(claim: Claim) -> None:
    """Start a separate supervisor, which outlives this process and supervises the job to its end or deletion.

    The supervisor is a process of this machine, or a pod if the claim names an image. Blocks; needs a thread without an event
    loop.
    """
    from rallypoint.backends import registry  # noqa: PLC0415  as above

    located = resolve(claim.place)
    if claim.supervisor_image:
        pods = registry.supervisor_pods(located.site, image=claim.supervisor_image, credentials=located.credentials)
        asyncio.run(pods.leave(claim.name))
    else:
        registry.spawn_supervisor(claim.name, located.site, located.credentials)


def resolve(place: Place) -> Located:
    """Return the location of a place, with the present values of its connections. Blocks; raises `BackendError`.

    A place without a connection is resolved without Airflow. In Airflow's API server no place is returned that would have it
    run a program or read a file: editors of connections and authors of DAGs must not act with its rights.
    """
    from rallypoint.backends import registry  # noqa: PLC0415  as above
    from rallypoint.backends.contract import BackendError  # noqa: PLC0415

    try:
        settings, cluster = _read(place.conn_id) if place.conn_id else (None, None)
        located = locate(place, settings, cluster)
        if not in_api_server():
            return located
        site, credentials = registry.static_access(located.site, located.credentials)
        return dataclasses.replace(located, site=site, credentials=credentials)
    except BackendError:
        raise
    except RallypointError as error:
        raise BackendError(str(error)) from error


def in_api_server() -> bool:
    """Return whether this process is Airflow's API server: only that process imports its start module."""
    return "airflow.api_fastapi.main" in sys.modules


def _read(conn_id: str) -> tuple[Settings | None, KubernetesSettings | None]:
    conn = read_connection(conn_id)
    if conn.conn_type == KUBERNETES_TYPE:
        return None, read_kubernetes(conn_id, _extra(conn))
    if conn.conn_type != CONN_TYPE:
        allowed = f"{CONN_TYPE}, or {KUBERNETES_TYPE}"
        raise PlaceError(f"connection {conn_id!r}: its type {conn.conn_type!r} is not allowed; expected {allowed}")
    own = {name: getattr(conn, name) for name in ("host", "schema", "login", "password", "port")}
    settings = read_settings(conn_id, own=own, extra=_extra(conn))
    if settings.defaults.policies or settings.defaults.arguments:
        from rallypoint.provider.connections.defaults import check_policies  # noqa: PLC0415  as above

        check_policies(conn_id, settings.defaults)
    return settings, _read_cluster(settings)


def _read_cluster(settings: Settings) -> KubernetesSettings | None:
    if not settings.kubernetes_conn_id:
        return None
    conn = read_connection(settings.kubernetes_conn_id)
    if conn.conn_type != KUBERNETES_TYPE:
        raise PlaceError(
            f"connection {settings.conn_id!r}: kubernetes_conn_id: {conn.conn_id!r} has type {conn.conn_type!r}; "
            f"expected a connection of type {KUBERNETES_TYPE}"
        )
    return read_kubernetes(conn.conn_id, _extra(conn))


def read_connection(conn_id: str) -> Any:
    """Return Airflow's connection of this name, and mask its secrets in logs. Blocks; raises `BackendError`."""
    from airflow.sdk import BaseHook  # noqa: PLC0415  a DAG file has it already, and others may never come here
    from airflow.sdk.exceptions import AirflowNotFoundException  # noqa: PLC0415

    from rallypoint.backends.contract import BackendError  # noqa: PLC0415  as above

    try:
        conn = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise BackendError(
            f"conn_id: Airflow connection {conn_id!r} not found; create this connection, or choose another"
        ) from error
    except Exception as error:  # a secrets backend may raise any error, whose text may contain secrets
        raise BackendError(f"conn_id: cannot read connection {conn_id!r} ({type(error).__name__})") from error
    _mask(conn)
    return conn


def _extra(conn: Any) -> dict[str, Any]:
    return read_extra(conn.conn_id, conn.extra)


def _mask(conn: Any) -> None:
    """Mask the secrets of a kubeconfig, which Airflow does not mask: it masks passwords, and fields with certain names."""
    from airflow.sdk.log import mask_secret  # noqa: PLC0415  as above

    from rallypoint.provider.connections.masking import secrets_of  # noqa: PLC0415  brings YAML

    for secret in secrets_of(conn.extra or ""):
        mask_secret(secret)
