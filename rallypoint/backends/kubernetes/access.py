"""Which cluster, as whom, in which namespace: a kubeconfig, the pod that this process runs in, or the URL of a server.

The official client reads kubeconfigs, exec plugins and service accounts; all of it may block and is called in a thread. Nothing
of the client is imported before a cluster is asked for something.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import BackendError

__all__ = ["Access", "default_namespace", "load_configuration"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_USUAL = Path("~/.kube/config")


@dataclass(frozen=True, kw_only=True)
class Access:
    """How a cluster is reached; what is "" is found as kubectl finds it.

    Attributes:
        namespace: where the jobs are.
        kubeconfig, context: as kubectl's options of these names.
        server: URL of an API server that asks for nothing more (a proxy of kubectl's, an emulator); then no kubeconfig is read.
        token_file: file with a token for that server; "" is nobody in particular.
    """

    namespace: str
    kubeconfig: str = ""
    context: str = ""
    server: str = ""
    token_file: str = ""

    def __str__(self) -> str:
        return self.server or self.context or self.kubeconfig or "the cluster"


def default_namespace(*, kubeconfig: str = "", context: str = "", server: str = "") -> str:
    """Return the namespace that kubectl would use there: the context's, the pod's own, or `default`. Blocks."""
    if server:
        return "default"
    if not _has_kubeconfig(kubeconfig, context):
        own = _ACCOUNT / "namespace"
        return own.read_text().strip() if own.is_file() else "default"
    from kubernetes.config import ConfigException, list_kube_config_contexts  # noqa: PLC0415  slow

    try:
        contexts, active = list_kube_config_contexts(kubeconfig or None)
    except (ConfigException, OSError) as error:
        raise BackendError(f"kubeconfig: {kubeconfig or _named()} cannot be used: {error}") from error
    chosen = next((c for c in contexts if c["name"] == context), None) if context else active
    if chosen is None:
        names = ", ".join(sorted(str(c["name"]) for c in contexts))
        raise BackendError(f"context: {context!r} is not in {kubeconfig or _named()}; choose one of {names}")
    return str(chosen["context"].get("namespace") or "default")


def load_configuration(access: Access) -> Any:
    """Return the official client's configuration, with fresh credentials. Blocks; raises `BackendError`."""
    try:
        from kubernetes.aio.client import Configuration  # noqa: PLC0415  slow
        from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise BackendError(
            f"backend: kubernetes needs {error.name}; install it with: pip install 'airflow-provider-rallypoint[kubernetes]'"
        ) from error
    configuration = Configuration()
    try:
        if access.server:
            configuration.host = access.server.rstrip("/")
            if access.token_file:
                configuration.api_key["BearerToken"] = f"Bearer {Path(access.token_file).read_text().strip()}"
        elif _has_kubeconfig(access.kubeconfig, access.context):
            # An exec plugin is waited for in a loop of its own: ours goes on meanwhile.
            asyncio.run(
                load_kube_config(
                    config_file=access.kubeconfig or None,
                    context=access.context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
            )
        else:
            load_incluster_config(configuration)
    except (ConfigException, OSError, ValueError) as error:
        where = access.kubeconfig or _named()
        raise BackendError(f"kubeconfig: no cluster can be reached by {where}, nor as a pod of one: {error}") from error
    return configuration


def _has_kubeconfig(kubeconfig: str, context: str) -> bool:
    return bool(kubeconfig or context or os.environ.get("KUBECONFIG") or _USUAL.expanduser().is_file())


def _named() -> str:
    return os.environ.get("KUBECONFIG") or str(_USUAL)
