"""Functions of the backends that commands call. They are imported on first use, so that `--help` is fast."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.backends.site import Site

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Blueprint
    from rallypoint.backends.credentials import Credentials
    from rallypoint.backends.kubernetes.dryrun import Refusal
    from rallypoint.backends.kubernetes.leaving import SupervisorPods
    from rallypoint.cli.options import Where

__all__ = ["Services"]


def _open_backend(site: Site) -> Backend:
    from rallypoint.backends.registry import open_site  # noqa: PLC0415

    return open_site(site)


def _spawn_supervisor(name: str, site: Site) -> int:
    from rallypoint.backends.registry import spawn_supervisor  # noqa: PLC0415

    return spawn_supervisor(name, site)


def _supervisor_log(name: str, site: Site) -> Path:
    from rallypoint.backends.registry import supervisor_log  # noqa: PLC0415

    return supervisor_log(name, site)


def _supervisor_pods(site: Site, image: str, account: str) -> SupervisorPods:
    from rallypoint.backends.registry import supervisor_pods  # noqa: PLC0415

    return supervisor_pods(site, image=image, account=account)


async def _refusals(site: Site, blueprint: Blueprint) -> tuple[Refusal, ...]:
    from rallypoint.backends.registry import refusals  # noqa: PLC0415

    return await refusals(site, blueprint)


@dataclass(frozen=True, kw_only=True)
class Services:
    """Functions that a command uses to reach backends and to start supervisors.

    Attributes:
        open_backend: opens the backend at a site.
        spawn_supervisor: starts a process on this machine that supervises a job to its end, and returns its process id;
            `supervisor_log` returns the path of its log.
        supervisor_pods: returns the manager of supervisor pods at a site; "" as image or service account is the default.
        refusals: returns the errors that the API server of a cluster would raise for a submission.
    """

    open_backend: Callable[[Site], Backend] = _open_backend
    spawn_supervisor: Callable[[str, Site], int] = _spawn_supervisor
    supervisor_log: Callable[[str, Site], Path] = _supervisor_log
    supervisor_pods: Callable[[Site, str, str], SupervisorPods] = _supervisor_pods
    refusals: Callable[[Site, Blueprint], Awaitable[tuple[Refusal, ...]]] = _refusals

    def with_credentials(self, credentials: Credentials) -> Services:
        """Return these services with a backend and supervisors that use credentials."""
        from rallypoint.backends import registry  # noqa: PLC0415

        def supervisor_pods(site: Site, image: str, account: str) -> SupervisorPods:
            return registry.supervisor_pods(site, image=image, account=account, credentials=credentials)

        return dataclasses.replace(
            self,
            open_backend=lambda site: registry.open_site(site, credentials),
            spawn_supervisor=lambda name, site: registry.spawn_supervisor(name, site, credentials),
            supervisor_pods=supervisor_pods,
        )

    @contextlib.asynccontextmanager
    async def backend(self, where: Where) -> AsyncIterator[Backend]:
        """Open a backend for the duration of the context."""
        opened = self.open_backend(where.site)
        try:
            yield opened
        finally:
            await opened.close()
