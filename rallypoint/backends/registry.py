"""Backends by the word that users give. The environment is read here and in each backend's own door, and nowhere below."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rallypoint.backends.contract import Backend, BackendError
from rallypoint.backends.site import KUBERNETES, LOCAL, Site, SiteError
from rallypoint.wire.env import API_SERVER, HOME

__all__ = ["default_home", "home_of", "open_backend", "open_site"]


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


def _local(site: Site) -> Backend:
    from rallypoint.backends.local.backend import LocalBackend  # noqa: PLC0415  what is not asked for is not imported

    return LocalBackend(home_of(site))


def _kubernetes(site: Site) -> Backend:
    from rallypoint.backends.kubernetes.access import Access, default_namespace  # noqa: PLC0415  as above
    from rallypoint.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415

    where = {"kubeconfig": site.kubeconfig, "context": site.context}
    if not any(where.values()):
        where["server"] = os.environ.get(API_SERVER, "")
    return KubernetesBackend(Access(namespace=site.namespace or default_namespace(**where), **where))


_KINDS: dict[str, Callable[[Site], Backend]] = {LOCAL: _local, KUBERNETES: _kubernetes}
