"""A connection of Airflow's own type `kubernetes`: how a cluster is reached. Pure.

The fields have the meaning that the cncf provider documents, so that both providers can use the same connection.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from rallypoint.backends.credentials import Credentials
from rallypoint.provider.connections.connection import ConnectionFieldError, Fields, text_of

__all__ = ["CONN_TYPE", "KubernetesSettings", "read_kubernetes"]

CONN_TYPE = "kubernetes"

#: Prefix of the fields before Airflow 2.3, still present in old connections.
_OLD = "extra__kubernetes__"

#: Fields of which at most one may be set.
_WAYS = ("in_cluster", "kube_config_path", "kube_config")

#: A path, and not the text of a kubeconfig or a URL: errors show the path.
_PATH = re.compile(r"(?!\s)(?!.*://)[^\x00-\x1f\x7f-\x9f{}\"']{1,1024}(?<!\s)")

_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """The values of such a connection; "" selects the default of kubectl.

    Attributes:
        conn_id: its name, for errors.
        namespace, context, kubeconfig: as in `Site`.
    """

    conn_id: str
    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    credentials: Credentials = field(default_factory=Credentials)


def read_kubernetes(conn_id: str, extra: Fields) -> KubernetesSettings:
    """Read the extra of a connection; raises `ConnectionFieldError`. Fields of the cncf provider are ignored."""
    fields = {name.removeprefix(_OLD): value for name, value in extra.items() if name.startswith(_OLD)}
    fields |= {name: value for name, value in extra.items() if not name.startswith(_OLD) and value not in (None, "")}
    inline = _inline(conn_id, fields.get("kube_config"))
    in_cluster = _flag(conn_id, fields, "in_cluster")
    path = _path(conn_id, fields)
    given = [name for name, value in zip(_WAYS, (in_cluster, path, inline), strict=True) if value]
    if len(given) > 1:
        allowed = f"one of {', '.join(_WAYS)}"
        raise ConnectionFieldError(conn_id, " and ".join(given), None, allowed)
    context = text_of(conn_id, fields, "cluster_context")
    if context and in_cluster:
        raise ConnectionFieldError(conn_id, "cluster_context", context, "no value, because in_cluster is set")
    credentials = Credentials(
        kubeconfig=inline,
        in_cluster=in_cluster,
        verify_ssl=not _flag(conn_id, fields, "disable_verify_ssl"),
        tcp_keepalive=not _flag(conn_id, fields, "disable_tcp_keepalive"),
    )
    namespace = text_of(conn_id, fields, "namespace")
    return KubernetesSettings(conn_id=conn_id, namespace=namespace, context=context, kubeconfig=path, credentials=credentials)


def _flag(conn_id: str, fields: Fields, name: str) -> bool:
    """Return a field that is true or false; connections from URIs have strings."""
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    known = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else None
    if known is None:
        raise ConnectionFieldError(conn_id, name, value, "true or false")
    return known


def _path(conn_id: str, fields: Fields) -> str:
    value = fields.get("kube_config_path") or ""
    if not isinstance(value, str) or (value and not _PATH.fullmatch(value)):
        allowed = "the path of a kubeconfig, without white space at its beginning and its end; `kube_config` is for its text"
        raise ConnectionFieldError(conn_id, "kube_config_path", value, allowed)
    return value


def _inline(conn_id: str, value: Any) -> str:
    """Return the text of a kubeconfig, which is text from a form, and text or a mapping in JSON."""
    if value is None or value in ("", {}):
        return ""
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if not isinstance(value, str):
        raise ConnectionFieldError(conn_id, "kube_config", None, "a kubeconfig as JSON or YAML")
    return value if value.strip() else ""
