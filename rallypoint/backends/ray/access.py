"""How the cluster of a site is reached. Pure."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.site import ADDRESS_ALLOWED, STORAGE_ALLOWED, wrong_address, wrong_storage

__all__ = ["LEDGER", "NAMESPACE", "Access", "read_runtime_env", "tls_context"]

#: Ray namespace of the jobs where nobody names one.
NAMESPACE = "rallypoint"

#: Name of the ledger actor in its namespace.
LEDGER = "rallypoint-ledger"


@dataclass(frozen=True, kw_only=True)
class Access:
    """A Ray cluster and what its jobs use there.

    Attributes:
        address: URL of the dashboard, which serves the Jobs API: `http://head:8265`.
        namespace: Ray namespace of ledger and nodes.
        storage: folder of the ledger, on its machine; "" is `~/.rallypoint/ray/NAMESPACE`.
        runtime_env: of the nodes, as Ray reads it.
        token: bearer token of the dashboard; "" is none. It is not shown.
        verify_ssl: whether the dashboard must prove who it is.
        ca_cert: certificates (PEM) of its authority; "" is those of the system.
        read_only: no Ray job is submitted, also not the one that starts the ledger.
    """

    address: str
    namespace: str = NAMESPACE
    storage: str = ""
    runtime_env: str = ""
    token: str = field(default="", repr=False)
    verify_ssl: bool = True
    ca_cert: str = ""
    read_only: bool = False

    def __post_init__(self) -> None:
        if wrong := wrong_address(self.address):
            raise BackendError(f"address: {wrong} is not allowed; expected {ADDRESS_ALLOWED}")
        if wrong := wrong_storage(self.storage):
            raise BackendError(f"storage: {wrong} is not allowed; expected {STORAGE_ALLOWED}")
        read_runtime_env(self.runtime_env)
        tls_context(self)

    @property
    def url(self) -> str:
        """The address without a slash at its end."""
        return self.address.rstrip("/")


def tls_context(access: Access) -> ssl.SSLContext | None:
    """Return how a dashboard is verified, None for the usual way; raises `BackendError` for certificates that are none."""
    if not access.verify_ssl:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    if not access.ca_cert:
        return None
    try:
        return ssl.create_default_context(cadata=access.ca_cert)
    except (ssl.SSLError, ValueError) as error:
        raise BackendError("ca_cert: the value is not allowed; expected CA certificates in PEM format") from error


def read_runtime_env(text: str) -> dict[str, Any]:
    """Return a runtime environment; raises `BackendError` for what is no JSON object."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BackendError('runtime_env: the value is not allowed; expected a JSON object, such as {"working_dir": "."}')
    return found
