"""Credentials that run no program and read no file, for a process that must not do so for a connection: the API server.

A kubeconfig can name an exec plug-in, an auth provider, and files with tokens, certificates and keys. An editor of connections
could run programs with the API server's rights, or have it send its files to another server. So the fields that may be used are
copied, and everything else is left out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rallypoint.backends.contract import BackendError
from rallypoint.backends.credentials import Credentials
from rallypoint.backends.kubernetes.access import inline_kubeconfig
from rallypoint.backends.site import Site

__all__ = ["static_access"]

_SERVER = ("server", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name")

_ALLOWED = (
    "set in_cluster instead, or a kube_config with a server and a token (the API server runs no plug-ins and reads no files)"
)


def static_access(site: Site, credentials: Credentials) -> tuple[Site, Credentials]:
    """Return how the same cluster is reached with in-cluster credentials or a static token. Pure.

    Args:
        site: where jobs are.
        credentials: of the connection.

    Raises:
        BackendError: that is not possible; it names the field.
    """
    if site.kubeconfig:
        raise BackendError(f"kube_config_path: {site.kubeconfig!r} is not allowed in the API server of Airflow; {_ALLOWED}")
    if not credentials.kubeconfig:
        if site.context:
            raise BackendError(f"cluster_context: {site.context!r} is not allowed in the API server of Airflow; {_ALLOWED}")
        return site, dataclasses.replace(credentials, in_cluster=True)
    config = inline_kubeconfig(credentials)
    name = site.context or str(config.get("current-context") or "")
    context = _named(config, "contexts", name, "context")
    token = credentials.token or _token(_named(config, "users", str(context.get("user") or ""), "user"))
    cluster = _named(config, "clusters", str(context.get("cluster") or ""), "cluster")
    server = str(cluster.get("server") or "")
    if not server.startswith(("https://", "http://")):
        raise BackendError(f"kube_config: server of context {name!r} is not allowed; expected the URL of an API server")
    kept = {field: cluster[field] for field in _SERVER if field in cluster}
    text = json.dumps(_kubeconfig(kept, namespace=str(context.get("namespace") or "")))
    namespace = site.namespace or str(context.get("namespace") or "")
    static = dataclasses.replace(site, context="", namespace=namespace)
    return static, dataclasses.replace(credentials, kubeconfig=text, token=token, in_cluster=False)


def _named(config: Mapping[str, Any], part: str, name: str, inner: str) -> Mapping[str, Any]:
    for entry in config.get(part) or ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(inner), dict):
            found: Mapping[str, Any] = entry[inner]
            return found
    raise BackendError(f"kube_config: {part} has no entry named {name!r}; expected a complete kubeconfig")


def _token(user: Mapping[str, Any]) -> str:
    token = user.get("token")
    if isinstance(token, str) and token:
        return token
    given = ", ".join(sorted(map(str, user))) or "nothing"
    raise BackendError(f"kube_config: authentication by {given} is not allowed in the API server of Airflow; {_ALLOWED}")


def _kubeconfig(cluster: Mapping[str, Any], *, namespace: str) -> dict[str, Any]:
    name = "static"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": dict(cluster)}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace or "default"}}],
        "users": [{"name": name, "user": {}}],
    }
