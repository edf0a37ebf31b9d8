"""Which transport a job's agents and its coordinator use: what `Plan.service_type` says, and what both ends have.

The coordinator always serves HTTP: people, supervisors and probes come that way. It serves gRPC on a port of its own beside it
unless the plan says `http`, and tells that port with its address (`Endpoint.grpc`), or where only an address is known
beforehand, by its `/healthz`. An agent takes gRPC where it is offered. Where grpcio is missing on either side a plan that says
`grpc` cannot be carried out, which is an error; one that says nothing goes on over HTTP, and one line of the log says why.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.agent.descriptors import shares
from rallypoint.agent.errors import ConfigError, UnreachableError
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.grpc_words import why_not
from rallypoint.agent.transport.service import CoordinatorService, Exchange, SupervisorDoor
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import AgentReport, Reply

if TYPE_CHECKING:
    from rallypoint.agent.transport.grpc_server import GrpcServer

__all__ = ["GRPC", "HTTP", "Exchanges", "Servers", "speaks_grpc"]

log = logging.getLogger("rallypoint.transport")

GRPC, HTTP = "grpc", "http"


def speaks_grpc(service_type: str) -> bool:
    """Return whether gRPC is spoken here.

    Raises `ConfigError` for a type that there is none of, and where it was asked for by name and grpcio cannot be imported.
    """
    if service_type not in ("", GRPC, HTTP):
        raise ConfigError(f"service_type {service_type!r}: not allowed; expected {GRPC} or {HTTP}")
    if service_type == HTTP:
        return False
    missing = why_not()
    if missing and service_type == GRPC:
        raise ConfigError(
            f"service_type grpc: {missing}; install airflow-provider-rallypoint[agent] or set service_type to http"
        )
    if missing:
        log.warning("using HTTP instead of gRPC: %s", missing)
    return not missing


class Servers:
    """The servers of one coordinator."""

    def __init__(
        self,
        service: CoordinatorService,
        *,
        token: str,
        service_type: str,
        agents: int = 1,
        door: SupervisorDoor | None = None,
        store: Callable[[], str] | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Prepare to serve at most so many `agents`; raises `ConfigError` as `speaks_grpc` does.

        `store` returns the address of the running round's store, which then answers at the port of HTTP as well.
        """
        from rallypoint.agent.transport.http_server import HttpServer  # noqa: PLC0415  as grpcio, where it is needed

        spoken = speaks_grpc(service_type)
        self._shares, self._agents = shares(grpc=spoken, forwards=store is not None), agents
        self._http = HttpServer(service, token=token, door=door, store=store, tls=tls)
        self._grpc: GrpcServer | None = None
        if spoken:
            from rallypoint.agent.transport.grpc_server import GrpcServer  # noqa: PLC0415

            self._grpc = GrpcServer(service, token=token, agents=agents, tls=tls, most=self._shares.grpc)

    async def start(self, host: str, port: int, *, grpc: int = 0) -> tuple[int, int]:
        """Listen and return the ports of HTTP and of gRPC, 0 where that is not spoken; raises `ConfigError` as `listen` does.

        A `port` of 0 is any free one. So is a port `grpc` that is in use: where gRPC listens is told, not agreed on.
        """
        self._warn_of_few()
        if self._grpc is None:
            return await self._http.start(host, port, shares=self._shares), 0
        self._http.settled.clear()  # who asks for the other port at once is told when it is known
        try:
            port = await self._http.start(host, port, shares=self._shares)
            self._http.grpc = await self._start_grpc(self._grpc, host, grpc)
        except BaseException:
            await self.close()
            raise
        finally:
            self._http.settled.set()
        return port, self._http.grpc

    def _warn_of_few(self) -> None:
        """Say beforehand where this process may have too few connections for its agents."""
        most = self._shares.requests if self._grpc is None else self._shares.grpc
        if most < self._agents:
            allowed = "raise the hard limit on open files (ulimit -Hn) of this process"
            log.warning(
                "the limit on open files allows the coordinator only %d connections for %d agents: %s",
                most,
                self._agents,
                allowed,
            )

    @staticmethod
    async def _start_grpc(server: GrpcServer, host: str, port: int) -> int:
        try:
            return await server.start(host, port)
        except ConfigError as error:
            if not port:
                raise
            log.warning("%s; the coordinator uses a free port instead", error)
            return await server.start(host, 0)

    async def close(self) -> None:
        """Stop listening, let answers under way out, close the connections."""
        if self._grpc is not None:
            await self._grpc.close()
        await self._http.close()


class Exchanges:
    """An agent's exchange with coordinators of either kind; implements `Exchange`."""

    def __init__(self, token: str, *, service_type: str, look: bool = False, tls: Tls | None = None) -> None:
        """Prepare to ask.

        Args:
            token: the job's secret.
            service_type: see `Plan`.
            look: endpoints do not say whether they speak gRPC, so that they are asked for it.
            tls: certificates of the job; None speaks without TLS.

        Raises:
            ConfigError: as `speaks_grpc` does.

        """
        self._token, self._named, self._look, self._tls = token, service_type == GRPC, look, tls
        self._able = speaks_grpc(service_type)
        self._known: dict[str, Exchange] = {}
        self._found: dict[Endpoint, int] = {}
        self._told = False

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        """See `Exchange.exchange`."""
        where = await self._looked_up(endpoint) if self._able else endpoint
        kind = GRPC if self._able and where.grpc else HTTP
        if kind == HTTP and self._named:
            raise ConfigError(f"service_type grpc: the coordinator at {endpoint.address} does not support gRPC")
        if kind == HTTP and self._able and not self._told:
            log.warning("using HTTP instead of gRPC: the coordinator at %s does not support gRPC", endpoint.address)
            self._told = True
        return await self._by(kind).exchange(where, report, timeout=timeout)

    async def close(self) -> None:
        """See `Exchange.close`."""
        for exchange in self._known.values():
            await exchange.close()

    async def _looked_up(self, endpoint: Endpoint) -> Endpoint:
        if endpoint.grpc or not self._look:
            return endpoint
        port = self._found.get(endpoint)
        if port is None:
            from rallypoint.agent.transport.http_client import grpc_port  # noqa: PLC0415

            port = await grpc_port(endpoint, self._tls)
            if port is None:
                raise UnreachableError(f"{endpoint.address}: no coordinator answers")
            self._found[endpoint] = port
        return dataclasses.replace(endpoint, grpc=port)

    def _by(self, kind: str) -> Exchange:
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = _exchange(kind, self._token, self._tls)
        return known


def _exchange(kind: str, token: str, tls: Tls | None) -> Exchange:
    if kind == GRPC:
        from rallypoint.agent.transport.grpc_client import GrpcExchange  # noqa: PLC0415

        return GrpcExchange(token, tls)
    from rallypoint.agent.transport.http_client import HttpExchange  # noqa: PLC0415

    return HttpExchange(token, tls)
