"""Secrets in a connection's extra that Airflow does not mask by their names. Pure."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

from rallypoint.job import JobError
from rallypoint.job.document import read_yaml
from rallypoint.wire.sanitize import parse

__all__ = ["secrets_of"]

#: Keys of a kubeconfig's user with credentials.
_SECRET = re.compile(r"token|password|secret|key-data|private", re.IGNORECASE)

#: Shorter values are not masked, because they are common words.
_LEAST = 6


@functools.lru_cache(maxsize=16)
def secrets_of(extra: str) -> tuple[str, ...]:
    """Return all secrets of the kubeconfig in an extra; none without a kubeconfig.

    Cached, because a triggerer opens a thousand places by one connection, and YAML is slow.
    """
    found: list[str] = []
    with contextlib.suppress(ValueError):
        fields = parse(extra) if extra.strip() else {}
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if name.endswith("kube_config") and value:
                found += _of_kubeconfig(value)
    return tuple(dict.fromkeys(text for text in found if len(text) >= _LEAST))


def _of_kubeconfig(value: Any) -> Iterator[str]:
    config = value
    if isinstance(value, str):
        yield value
        try:
            config = read_yaml(value)
        except JobError:
            return
    if isinstance(config, dict):
        yield from _of_user(config.get("users"))
        yield from _of_clusters(config.get("clusters"))


def _of_clusters(value: Any) -> Iterator[str]:
    for entry in value if isinstance(value, list) else ():
        cluster = entry.get("cluster") if isinstance(entry, dict) else None
        for url in (cluster.get("proxy-url"), cluster.get("server")) if isinstance(cluster, dict) else ():
            user = str(url).partition("//")[2].rpartition("@")[0]
            password = user.partition(":")[2]
            # A client may quote it as it is written, decoded, or encoded in its own way.
            yield from (user, password, unquote(password), quote(unquote(password), safe="")) if user else ()


def _of_user(value: Any, *, secret: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        # Environment of an exec plug-in: {name: AWS_SECRET_ACCESS_KEY, value: ...}.
        named = value["name"] if isinstance(value.get("name"), str) and "value" in value else ""
        for key, inner in value.items():
            yield from _of_user(inner, secret=bool(_SECRET.search(str(key))) or (key == "value" and bool(named)))
    elif isinstance(value, list):
        for inner in value:
            yield from _of_user(inner, secret=secret)
    elif secret and isinstance(value, (str, int)) and not isinstance(value, bool):
        yield str(value)
