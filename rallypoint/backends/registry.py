"""Backends by the word that users give. The environment is read here and in each backend's own door, and nowhere below."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.backends.contract import Backend, BackendError, Blueprint
from rallypoint.backends.site import KUBERNETES, LOCAL, Site, SiteError
from rallypoint.wire.env import API_SERVER, HOME, SERVICE_ACCOUNT

if TYPE_CHECKING:
    from rallypoint.backends.kubernetes.access import Access
    from rallypoint.backends.kubernetes.dryrun import Refusal
    from rallypoint.backends.kubernetes.leaving import SupervisorPods

__all__ = [
    "default_home",
    "home_of",
    "open_backend",
    "open_site",
    "refusals",
    "spawn_supervisor",
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


def open_site(site: Site) -> Backend:
    """Return the backend that holds the jobs of a site. May read files, such as a kubeconfig; raises `BackendError`."""
    return _KINDS[site.kind](site)


def spawn_supervisor(name: str, site: Site) -> int:
    """Start a process of this machine that sees a job to its end and outlives the caller; return its number. Blocks."""
    from rallypoint.backends.local import detach  # noqa: PLC0415  as above
    from rallypoint.backends.local.files import telling  # noqa: PLC0415

    if site.kind == LOCAL:
        return detach.spawn_supervisor(home_of(site), name)
    log = supervisor_log(name, site)
    with telling(log):
        log.parent.mkdir(parents=True, exist_ok=True)
    return detach.launch(log, ("supervise", name, *site.options()))


def supervisor_pods(site: Site, *, image: str = "", account: str = "") -> SupervisorPods:
    """Return what supervises the jobs of a cluster from inside of it; `image` and `account` "" are the usual ones."""
    from rallypoint.backends.kubernetes.leaving import SupervisorPods  # noqa: PLC0415  as above

    return SupervisorPods(_access(site), image=image, account=account)


async def refusals(site: Site, blueprint: Blueprint) -> tuple[Refusal, ...]:
    """Return what the API server of a cluster would refuse of a submission; creates nothing. Raises `BackendError`."""
    from rallypoint.backends.kubernetes.dryrun import refusals as asked  # noqa: PLC0415  as above

    return await asked(await asyncio.to_thread(_access, site), blueprint)


def supervisor_log(name: str, site: Site) -> Path:
    """Return the file with the words of a supervisor that runs on this machine."""
    if site.kind == LOCAL:
        from rallypoint.backends.local.store import Store  # noqa: PLC0415  as above

        return Store(home=home_of(site)).job(name).supervisor_log
    return home_of(site) / site.kind / (site.namespace or "default") / f"{name}.log"


def _local(site: Site) -> Backend:
    from rallypoint.backends.local.backend import LocalBackend  # noqa: PLC0415  what is not asked for is not imported

    return LocalBackend(home_of(site))


def _kubernetes(site: Site) -> Backend:
    from rallypoint.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415  as above

    return KubernetesBackend(_access(site))


def _access(site: Site) -> Access:
    from rallypoint.backends.kubernetes.access import Access, default_namespace  # noqa: PLC0415  as above

    where = {"kubeconfig": site.kubeconfig, "context": site.context}
    server = "" if any(where.values()) else os.environ.get(API_SERVER, "")
    namespace = site.namespace or default_namespace(**where, server=server)
    account = os.environ.get(SERVICE_ACCOUNT, "") if server else ""
    return Access(namespace=namespace, **where, server=server, token_file=f"{account}/token" if account else "")


_KINDS: dict[str, Callable[[Site], Backend]] = {LOCAL: _local, KUBERNETES: _kubernetes}
