"""Choice of the transport between agents and coordinator, by `Plan.service_type` and the installed packages.

The coordinator always serves HTTP, for users, supervisors and probes. It also serves gRPC on a second port unless the plan has
`http`, and publishes that port with its address (`Endpoint.grpc`), or at `/healthz` if agents know only the address. An agent
uses gRPC if the coordinator offers it. If grpcio is missing on either side, a plan with `grpc` is an error; a plan without a
service type uses HTTP, and one log line gives the reason.
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
    """Return whether this process uses gRPC.

    Raises `ConfigError` for an unknown type, and if the plan requires gRPC and grpcio cannot be imported.
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
        log.warning("gRPC is not available in this process (%s); it uses HTTP instead", missing)
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
        """Prepare to serve at most `agents` agents; raises `ConfigError` as `speaks_grpc` does.

        `store` returns the address of the current round's store; the HTTP port then forwards connections to it.
        """
        from rallypoint.agent.transport.http_server import HttpServer  # noqa: PLC0415  as grpcio, where it is needed

        spoken = speaks_grpc(service_type)
        self._shares, self._agents = shares(grpc=spoken, forwards=store is not None), agents
        self._http = HttpServer(service, token=token, agents=agents, door=door, store=store, tls=tls)
        self._grpc: GrpcServer | None = None
        if spoken:
            from rallypoint.agent.transport.grpc_server import GrpcServer  # noqa: PLC0415

            self._grpc = GrpcServer(service, token=token, agents=agents, tls=tls, shared=self._shares)

    async def start(self, host: str, port: int, *, grpc: int = 0) -> tuple[int, int]:
        """Listen and return the ports of HTTP and gRPC (0 without gRPC); raises `ConfigError` as `listen` does.

        A `port` of 0 selects a free port. If the port `grpc` is in use, a free one is selected, too, because it is published.
        """
        self._warn_of_few()
        if self._grpc is None:
            return await self._http.start(host, port, shares=self._shares), 0
        self._http.settled.clear()  # a request for the gRPC port waits until the port is open
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
        """Log a warning if the limit on open files allows too few connections for the agents."""
        most = self._shares.requests if self._grpc is None else self._grpc.most
        if most < self._agents:
            log.warning(
                "the coordinator can open only %d connections, but the job has up to %d agents; raise the hard limit on "
                "open files (ulimit -Hn) of this process",
                most,
                self._agents,
            )

    @staticmethod
    async def _start_grpc(server: GrpcServer, host: str, port: int) -> int:
        try:
            return await server.start(host, port)
        except ConfigError as error:
            if not port:
                raise
            log.warning("the coordinator cannot open its gRPC port (%s); it uses another free port", error)
            return await server.start(host, 0)

    async def close(self) -> None:
        """Stop listening, finish pending replies, and close the connections."""
        if self._grpc is not None:
            await self._grpc.close()
        await self._http.close()


class Exchanges:
    """An agent's exchange with the coordinator over either transport; implements `Exchange`."""

    def __init__(self, token: str, *, service_type: str, look: bool = False, tls: Tls | None = None) -> None:
        """Create the exchange.

        Args:
            token: the job's secret.
            service_type: see `Plan`.
            look: endpoints are mere addresses, at which any program may listen: query `/healthz` for the gRPC port and for
                the proof that the coordinator has the token.
            tls: certificates of the job; None for connections without TLS.

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
        where = await self._looked_up(endpoint) if self._look and not endpoint.grpc else endpoint
        kind = GRPC if self._able and where.grpc else HTTP
        if kind == HTTP and self._named:
            raise ConfigError(f"service_type grpc: the coordinator at {endpoint.address} does not support gRPC")
        if kind == HTTP and self._able and not self._told:
            log.warning(
                "this agent uses HTTP instead of gRPC, because the coordinator at %s does not support gRPC", endpoint.address
            )
            self._told = True
        try:
            return await self._by(kind).exchange(where, report, timeout=timeout)
        except UnreachableError:
            self._found.pop(endpoint, None)  # another program may have the address now
            raise

    async def close(self) -> None:
        """See `Exchange.close`."""
        for exchange in self._known.values():
            await exchange.close()

    async def _looked_up(self, endpoint: Endpoint) -> Endpoint:
        port = self._found.get(endpoint)
        if port is None:
            from rallypoint.agent.transport.http_client import grpc_port  # noqa: PLC0415

            port = await grpc_port(endpoint, self._tls, token=self._token)
            if port is None:
                raise UnreachableError(f"no coordinator with the secret of this job responds at {endpoint.address}")
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
