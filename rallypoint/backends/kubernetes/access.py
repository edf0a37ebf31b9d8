"""Which cluster, as whom, in which namespace: a kubeconfig, the pod that this process runs in, or the URL of a server.

The official client reads kubeconfigs, exec plugins and service accounts; all of it may block and is called in a thread. Nothing
of the client is imported before a cluster is asked for something. No error here shows what a kubeconfig holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import stat
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rallypoint.backends.contract import BackendError
from rallypoint.backends.credentials import NO_CREDENTIALS, Credentials
from rallypoint.backends.site import Site
from rallypoint.job import JobError
from rallypoint.job.document import read_yaml
from rallypoint.kube.http import SERVICE_ACCOUNT

__all__ = ["Access", "default_namespace", "inline_kubeconfig", "load_configuration", "static_access"]

_USUAL = Path("~/.kube/config")

#: Seconds for which an exec plug-in may wait for a log-in, and for its end after it was killed.
_PATIENCE, _KILLED = 300.0, 5.0

#: Bytes of the largest kubeconfig that is read.
_LARGEST = 4 << 20

#: What a kubeconfig that was given as a text is called in errors.
_INLINE = "the connection's kube_config"

#: URL of an HTTP proxy, also with user name and password.
_PROXY = re.compile(r"https?://(?:[^\s/?#]*@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/?", re.ASCII)

_SERVER = ("server", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name")

_ALLOWED = (
    "set in_cluster instead, or a kube_config with a server and a token (the API server runs no plug-ins and reads no files)"
)


@dataclass(frozen=True, kw_only=True)
class Access:
    """How a cluster is reached; what is "" is found as kubectl finds it.

    Attributes:
        namespace: where the jobs are.
        kubeconfig, context: as kubectl's options of these names.
        server: URL of an API server that asks for nothing more (a proxy of kubectl's, an emulator); then no kubeconfig is read.
        token_file: file with a token for that server; "" is nobody in particular.
        credentials: what is not written down anywhere; a kubeconfig among them is read in the place of a file.
    """

    namespace: str
    kubeconfig: str = ""
    context: str = ""
    server: str = ""
    token_file: str = ""
    credentials: Credentials = NO_CREDENTIALS

    def __str__(self) -> str:
        inline = _INLINE if self.credentials.kubeconfig else ""
        return self.server or self.context or self.kubeconfig or inline or "the cluster"


def default_namespace(access: Access) -> str:
    """Return the namespace that kubectl would use there: the context's, the pod's own, or `default`. Blocks."""
    if access.server:
        return "default"
    if access.credentials.kubeconfig:
        contexts, active = _contexts_of(inline_kubeconfig(access.credentials))
    elif _has_kubeconfig(access):
        contexts, active = _contexts_in(access)
    else:
        own = SERVICE_ACCOUNT / "namespace"
        return own.read_text().strip() if own.is_file() else "default"
    chosen = next((c for c in contexts if c.get("name") == access.context), None) if access.context else active
    if chosen is None:
        names = ", ".join(sorted(str(c.get("name")) for c in contexts))
        raise BackendError(f"context: {access.context!r} not found (kubeconfig: {_named(access)}); choose one of {names}")
    return str((chosen.get("context") or {}).get("namespace") or "default")


def load_configuration(access: Access, *, patience: float = _PATIENCE) -> Any:
    """Return the official client's configuration, with fresh credentials. Blocks for `patience` seconds at most.

    Raises `BackendError`.
    """
    try:
        from kubernetes.aio.client import Configuration  # noqa: PLC0415  slow
    except ModuleNotFoundError as error:
        raise BackendError(
            f"backend: kubernetes requires the Python package {error.name}; install it with: "
            "pip install 'airflow-provider-rallypoint[kubernetes]'"
        ) from error
    configuration = Configuration()
    try:
        _reach(configuration, access, patience)
    except BackendError:
        raise
    except asyncio.TimeoutError:
        raise BackendError(
            f"kubeconfig: no credentials within {patience:g} s ({_named(access)}); check that the exec plug-in or identity "
            "provider of its user answers without input"
        ) from None
    except Exception as error:  # noqa: BLE001  a kubeconfig with something missing makes the client stumble in many ways
        reason = _without_contents(error)
        raise BackendError(
            f"kubeconfig: no cluster found ({_named(access)}: {reason}), and this process does not run in a pod; "
            "choose another kubeconfig"
        ) from None
    given = access.credentials
    if given.token:
        configuration.api_key = {"BearerToken": f"Bearer {given.token}"}
        configuration.refresh_api_key_hook = configuration.cert_file = configuration.key_file = None
    if not given.verify_ssl:
        configuration.verify_ssl = False
    _check_sent(configuration, access)
    return configuration


def _reach(configuration: Any, access: Access, patience: float) -> None:
    from kubernetes.aio.config import (  # noqa: PLC0415  slow
        load_incluster_config,
        load_kube_config,
        load_kube_config_from_dict,
    )

    # An exec plugin is waited for in a loop of its own: ours goes on meanwhile.
    context = access.context or None
    if access.credentials.kubeconfig:
        config = inline_kubeconfig(access.credentials)
        reading = load_kube_config_from_dict(config, context=context, client_configuration=configuration)
        _check(_finished(reading, patience))
    elif access.server:
        configuration.host = access.server.rstrip("/")
        if access.token_file:
            configuration.api_key["BearerToken"] = f"Bearer {Path(access.token_file).read_text().strip()}"
    elif _has_kubeconfig(access):
        _check_files(access)
        file = access.kubeconfig or None
        reading = load_kube_config(config_file=file, context=context, client_configuration=configuration, persist_config=False)
        _check(_finished(reading, patience))
    else:
        load_incluster_config(configuration)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that knows the processes that it has started."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[asyncio.SubprocessTransport] = []

    async def subprocess_exec(self, *arguments: Any, **options: Any) -> Any:
        transport, protocol = await super().subprocess_exec(*arguments, **options)
        self.processes.append(transport)
        return transport, protocol


def _finished(reading: Coroutine[Any, Any, Any], patience: float) -> Any:
    """Return the result of a coroutine; after `patience` seconds, kill its processes and raise `asyncio.TimeoutError`."""
    loop = _Loop()

    async def limited() -> Any:
        task = asyncio.ensure_future(reading)
        await asyncio.wait([task], timeout=patience)
        if task.done():
            return task.result()
        for process in loop.processes:
            process.close()  # kills it
        ended = asyncio.gather(task, return_exceptions=True)
        await asyncio.wait([ended], timeout=_KILLED)  # it ends with a plug-in that was killed
        ended.cancel()
        await asyncio.wait([ended], timeout=_KILLED)
        raise asyncio.TimeoutError

    try:
        return loop.run_until_complete(limited())
    finally:
        loop.close()


def _check_files(access: Access) -> None:
    """Raise `BackendError` for a kubeconfig that is too large, or no regular file: reading that could last for ever."""
    for name in (access.kubeconfig or os.environ.get("KUBECONFIG") or str(_USUAL)).split(os.pathsep):
        with contextlib.suppress(OSError):
            found = Path(name).expanduser().stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                raise BackendError(f"kubeconfig: {name!r} is not allowed; expected a regular file of at most {_LARGEST} bytes")


def _check_sent(configuration: Any, access: Access) -> None:
    """Raise `BackendError` for a server, proxy or token that HTTP clients refuse in each request, with errors that show it."""
    if re.search(r"[@\s]", str(configuration.host or "")):
        raise BackendError(
            f"kubeconfig: server: the value is not allowed ({_named(access)}); expected the URL of an API server without user "
            "name, password and white space; set username and password of the user instead"
        )
    if configuration.proxy and not _is_proxy(str(configuration.proxy)):
        raise BackendError(
            f"kubeconfig: proxy-url: the value is not allowed ({_named(access)}); expected a URL such as http://proxy:3128, "
            "with percent-encoding in user name and password"
        )
    if any(re.search(r"[\x00-\x1f\x7f]", str(value)) for value in configuration.api_key.values()):
        raise BackendError(
            f"kubeconfig: token: the value is not allowed ({_named(access)}); expected a token without line ends and other "
            "control characters"
        )


def _is_proxy(url: str) -> bool:
    try:
        return _PROXY.fullmatch(url) is not None and urlsplit(url).port != 0
    except ValueError:  # the port is too large
        return False


def _check(loader: Any) -> None:
    """Raise `BackendError` where an exec plug-in gave nothing: the client only logs that, and goes on as nobody."""
    user = getattr(loader, "_user", None)
    if user is None or "exec" not in user or hasattr(loader, "token") or getattr(loader, "cert_file", None):
        return
    command = str(user["exec"].safe_get("command") or "")
    raise BackendError(
        f"kubeconfig: the exec plug-in {command!r} returned no credentials; check that the plug-in is installed on this machine"
    )


def inline_kubeconfig(credentials: Credentials) -> dict[str, Any]:
    """Return the kubeconfig that was given as a text."""
    try:
        found = read_yaml(credentials.kubeconfig)
    except JobError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(key), list) for key in ("clusters", "contexts")):
        raise BackendError(
            "kube_config: the value is not allowed; expected a kubeconfig as JSON or YAML with clusters, contexts and users"
        ) from None
    return found


def _contexts_of(config: Mapping[str, Any]) -> tuple[list[Any], Any]:
    contexts = [context for context in config["contexts"] if isinstance(context, dict)]
    return contexts, next((c for c in contexts if c.get("name") == config.get("current-context")), None)


def _contexts_in(access: Access) -> tuple[list[Any], Any]:
    from kubernetes.config import ConfigException, list_kube_config_contexts  # noqa: PLC0415  slow

    _check_files(access)
    try:
        contexts, active = list_kube_config_contexts(access.kubeconfig or None)
    except (ConfigException, OSError) as error:
        raise BackendError(f"kubeconfig: cannot use {_named(access)}: {_without_contents(error)}") from None
    return list(contexts), active


def _has_kubeconfig(access: Access) -> bool:
    if access.credentials.in_cluster:
        return False
    return bool(access.kubeconfig or access.context or os.environ.get("KUBECONFIG") or _USUAL.expanduser().is_file())


def _named(access: Access) -> str:
    if access.credentials.kubeconfig:
        return _INLINE
    if access.credentials.in_cluster:
        return "in_cluster"
    return access.kubeconfig or os.environ.get("KUBECONFIG") or str(_USUAL)


def _without_contents(error: Exception) -> str:
    """Return an error's text without the mappings in it: the client names a place in a file by all that is in there."""
    return re.sub(r"\{.*\}", "{...}", str(error), flags=re.DOTALL) or type(error).__name__


def static_access(site: Site, credentials: Credentials) -> tuple[Site, Credentials]:
    """Return how the same cluster is reached with in-cluster credentials or a static token, for the API server of Airflow.
    Pure.

    No program is run and no file is read for a connection. A kubeconfig can name an exec plug-in, an auth provider, and files
    with tokens, certificates and keys: an editor of connections could run programs with the API server's rights, or have it
    send its files to another server. So the fields that may be used are copied, and everything else is left out.

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
    context = _entry_of(config, "contexts", name, "context")
    token = credentials.token or _token(_entry_of(config, "users", str(context.get("user") or ""), "user"))
    cluster = _entry_of(config, "clusters", str(context.get("cluster") or ""), "cluster")
    server = str(cluster.get("server") or "")
    if not server.startswith(("https://", "http://")):
        raise BackendError(f"kube_config: server of context {name!r} is not allowed; expected the URL of an API server")
    kept = {field: cluster[field] for field in _SERVER if field in cluster}
    text = json.dumps(_kubeconfig(kept, namespace=str(context.get("namespace") or "")))
    namespace = site.namespace or str(context.get("namespace") or "")
    static = dataclasses.replace(site, context="", namespace=namespace)
    return static, dataclasses.replace(credentials, kubeconfig=text, token=token, in_cluster=False)


def _entry_of(config: Mapping[str, Any], part: str, name: str, inner: str) -> Mapping[str, Any]:
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
