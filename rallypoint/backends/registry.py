"""Backends by the word that users give. The environment is read here and in each backend's own door, and nowhere below."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.backends.contract import Backend, BackendError, Blueprint
from rallypoint.backends.credentials import NO_CREDENTIALS, Credentials
from rallypoint.backends.findings import Findings
from rallypoint.backends.site import KUBERNETES, LOCAL, RAY, Site, SiteError
from rallypoint.wire.env import API_SERVER, HOME, RAY_ADDRESS, RAY_TOKEN, SERVICE_ACCOUNT
from rallypoint.wire.private import private_folder, tighten

if TYPE_CHECKING:
    from rallypoint.backends.kubernetes.access import Access
    from rallypoint.backends.kubernetes.dryrun import Refusal
    from rallypoint.backends.kubernetes.leaving import SupervisorPods
    from rallypoint.backends.ray.access import Access as RayAccess

__all__ = [
    "access_of",
    "default_home",
    "examine",
    "home_of",
    "open_backend",
    "open_site",
    "refusals",
    "spawn_supervisor",
    "static_access",
    "supervisor_log",
    "supervisor_pods",
]


def default_home() -> Path:
    """Return `$RALLYPOINT_HOME`, or else `~/.rallypoint`, as an absolute path."""
    return Path(os.environ.get(HOME) or "~/.rallypoint").expanduser().absolute()


def home_of(site: Site) -> Path:
    """Return the folder of what this machine keeps of a site: its jobs, or no more than the logs of their supervisors."""
    return Path(site.home).expanduser().absolute() if site.home else default_home()


def open_backend(
    kind: str = LOCAL, *, home: Path | None = None, namespace: str = "", context: str = "", kubeconfig: str = ""
) -> Backend:
    """Return the backend of a kind; what the rest means is in `Site`. Raises `BackendError` for what cannot be."""
    try:
        site = Site(kind=kind, home=str(home or ""), namespace=namespace, context=context, kubeconfig=kubeconfig)
    except SiteError as error:
        raise BackendError(str(error)) from error
    return open_site(site)


def open_site(site: Site, credentials: Credentials = NO_CREDENTIALS) -> Backend:
    """Return the backend that holds the jobs of a site. May read files, such as a kubeconfig; raises `BackendError`."""
    return _KINDS[site.kind](site, credentials)


def static_access(site: Site, credentials: Credentials = NO_CREDENTIALS) -> tuple[Site, Credentials]:
    """Return how the same jobs are reached without running a program or reading a file that the arguments name.

    For a process with more rights than those who write connections and tasks. Jobs of this machine are those of its own home.
    A cluster is reached with in-cluster credentials, a static token, or the server that the environment names.
    Raises `BackendError`.
    """
    if site.kind == LOCAL:
        if site.home and home_of(site) != default_home():
            raise BackendError(
                f"home: {site.home!r} is not allowed in the API server of Airflow; expected no value, because the API "
                f"server reads only the jobs in its own ${HOME}"
            )
        return Site(kind=LOCAL), NO_CREDENTIALS
    from rallypoint.backends.kubernetes.access import static_access as static  # noqa: PLC0415  as above

    if site.kind == RAY:
        # The API server's own token of Ray is for no cluster that a connection names, and looking at a job starts none.
        return site, dataclasses.replace(credentials, own_token=True, read_only=True)
    named = site.kubeconfig or site.context or credentials.kubeconfig or credentials.in_cluster
    if os.environ.get(API_SERVER) and not named:
        return site, credentials
    return static(site, credentials)


def spawn_supervisor(name: str, site: Site, credentials: Credentials = NO_CREDENTIALS) -> int:
    """Start a process of this machine that sees a job to its end and outlives the caller; return its number. Blocks.

    It gets the credentials on its standard input, and they are nowhere else: not in its arguments or its environment, which
    others may read, and in no file.
    """
    from rallypoint.backends.local import detach  # noqa: PLC0415  as above
    from rallypoint.backends.local.files import telling  # noqa: PLC0415
    from rallypoint.backends.local.store import require_own  # noqa: PLC0415

    if site.kind == LOCAL:
        return detach.spawn_supervisor(home_of(site), name)
    home, log = home_of(site), supervisor_log(name, site)
    require_own(home, below=(site.kind, str(log.parent.relative_to(home))))
    with telling(log):
        private_folder(log.parent)
        tighten(home / site.kind)
    if credentials == NO_CREDENTIALS:
        return detach.launch(log, ("supervise", name, *site.options()))
    return detach.launch(log, ("supervise", name, *site.options(), "--credentials-from-stdin"), told=credentials.to_json())


def supervisor_pods(
    site: Site, *, image: str = "", account: str = "", credentials: Credentials = NO_CREDENTIALS
) -> SupervisorPods:
    """Return what supervises the jobs of a cluster from inside of it; `image` and `account` "" are the usual ones."""
    from rallypoint.backends.kubernetes.leaving import SupervisorPods  # noqa: PLC0415  as above

    return SupervisorPods(access_of(site, credentials), image=image, account=account)


async def examine(site: Site, credentials: Credentials = NO_CREDENTIALS) -> Findings:
    """Return what is missing for jobs at a site, before there is one; creates nothing. Raises `BackendError`."""
    if site.kind == LOCAL:
        from rallypoint.backends.local.checks import examine as examined  # noqa: PLC0415  as above

        return await asyncio.to_thread(examined, home_of(site))
    if site.kind == RAY:
        from rallypoint.backends.ray.preflight import examine as looked  # noqa: PLC0415

        return await looked(_ray_access(site, credentials))
    from rallypoint.backends.kubernetes.preflight import examine as asked  # noqa: PLC0415

    return await asked(await asyncio.to_thread(access_of, site, credentials))


async def refusals(site: Site, blueprint: Blueprint) -> tuple[Refusal, ...]:
    """Return what the API server of a cluster would refuse of a submission; creates nothing. Raises `BackendError`."""
    from rallypoint.backends.kubernetes.dryrun import refusals as asked  # noqa: PLC0415  as above

    return await asked(await asyncio.to_thread(access_of, site), blueprint)


def supervisor_log(name: str, site: Site) -> Path:
    """Return the file with the words of a supervisor that runs on this machine."""
    if site.kind == LOCAL:
        from rallypoint.backends.local.store import Store  # noqa: PLC0415  as above

        return Store(home=home_of(site)).job(name).supervisor_log
    return home_of(site) / site.kind / (site.namespace or "default") / f"{name}.log"


def _local(site: Site, _: Credentials) -> Backend:
    from rallypoint.backends.local.backend import LocalBackend  # noqa: PLC0415  what is not asked for is not imported

    return LocalBackend(home_of(site))


def _kubernetes(site: Site, credentials: Credentials) -> Backend:
    from rallypoint.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415  as above

    return KubernetesBackend(access_of(site, credentials))


def _ray(site: Site, credentials: Credentials) -> Backend:
    from rallypoint.backends.ray.backend import RayBackend  # noqa: PLC0415  as above

    return RayBackend(_ray_access(site, credentials))


def _ray_access(site: Site, credentials: Credentials) -> RayAccess:
    """Return how a Ray cluster is reached, by Ray's own variables where nothing else says so; raises `BackendError`."""
    from rallypoint.backends.ray.access import NAMESPACE, Access  # noqa: PLC0415  as above

    return Access(
        address=site.address or os.environ.get(RAY_ADDRESS, ""),
        namespace=site.namespace or NAMESPACE,
        storage=site.storage,
        runtime_env=site.runtime_env,
        token=credentials.token or ("" if credentials.own_token else os.environ.get(RAY_TOKEN, "")),
        verify_ssl=credentials.verify_ssl,
        ca_cert=credentials.ca_cert,
        read_only=credentials.read_only,
    )


def access_of(site: Site, credentials: Credentials = NO_CREDENTIALS) -> Access:
    """Return how the cluster of a site is reached. May read a kubeconfig; raises `BackendError`."""
    from rallypoint.backends.kubernetes.access import Access, default_namespace  # noqa: PLC0415  as above

    named = site.kubeconfig or site.context or credentials.kubeconfig or credentials.in_cluster
    server = "" if named else os.environ.get(API_SERVER, "")
    account = os.environ.get(SERVICE_ACCOUNT, "") if server else ""
    access = Access(
        namespace=site.namespace,
        kubeconfig=site.kubeconfig,
        context=site.context,
        server=server,
        token_file=f"{account}/token" if account else "",
        credentials=credentials,
    )
    return access if access.namespace else dataclasses.replace(access, namespace=default_namespace(access))


_KINDS: dict[str, Callable[[Site, Credentials], Backend]] = {LOCAL: _local, KUBERNETES: _kubernetes, RAY: _ray}
