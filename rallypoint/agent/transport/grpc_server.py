"""The coordinator's gRPC transport: one stream per agent. `grpc_words.py` defines the messages.

Without TLS, the port is a `GrpcPort`, which forwards connections with the token to grpcio. With TLS, grpcio accepts connections
itself, with a connection limit and deadlines. It keeps about 100 KiB for a connection with a stream, so the limit depends on
the number of agents. A connection with a certificate but without the token is closed soon after its first stream. If
unauthenticated connections use so much of the limit that agents could be rejected, `silent_sockets.py` closes the longest
silent ones.

grpcio accepts streams one by one, with two thread switches each. For many agents several servers accept streams in parallel:
for 2,000 agents this takes a third of the time.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from typing import Any
from urllib.parse import unquote

from rallypoint.agent.descriptors import Shares, shares
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.linux import release_memory
from rallypoint.agent.silent_sockets import SweepLimits, descriptors_open, plain_address, sweep
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.grpc_port import GrpcPort
from rallypoint.agent.transport.grpc_words import SESSION, TOKEN_KEY, address, answer_to_bytes, grpcio, limits
from rallypoint.agent.transport.service import CoordinatorService
from rallypoint.agent.waiting import in_background, set_within
from rallypoint.wire import codec
from rallypoint.wire.messages import TOKEN_HEADER, AgentReport

__all__ = ["GrpcServer"]

log = logging.getLogger("rallypoint.grpc")

#: Seconds for pending replies when the server closes.
_SHUTDOWN = 2.0

#: Streams of a connection: an agent opens a new connection for a new stream. grpcio's server would accept any number, with
#: several KiB for each, much faster than Python can reject them.
_STREAMS = 1

#: Bytes of the headers of a stream: an agent sends the token and the name of its library.
_METADATA = 4096

#: Connections beyond two for each agent, one of which the agent may be replacing.
_SPARE = 1024

#: Seconds for which a stream may be pending: grpcio's default of 30 cancels streams on an overloaded machine, and their agents
#: would connect again.
_TAKEN_WITHIN = 3600

#: Number of agents from which several servers accept streams, and number of servers; 16 or 32 were not faster.
_CROWD, _SERVERS = 256, 8


#: Text for a client without the token.
_REJECTED = f"{TOKEN_HEADER}: does not match the secret of this job"

#: Key of the names in a peer's certificate.
_NAMES = "x509_subject_alternative_name"
#: Seconds for the handshake of a connection, and for which it may have no stream.
_PATIENCE = 10.0

#: Seconds between two checks of the connections; the second after some were unauthenticated. A rejected connection stays open
#: for at least the second, so that its client receives the reason.
_LOOK, _LOOK_AGAIN = 1.0, 0.4


class _NotTakenError(Exception):
    """A message that ends its stream: gRPC's status and details."""

    def __init__(self, status: Any, told: str) -> None:
        super().__init__(told)
        self.status, self.told = status, told


class GrpcServer:
    """Serve one coordinator to agents on one port. Users and supervisors use HTTP.

    `agents`: maximum number of agents, from which the connection limit follows. `patience`: seconds for pending replies when
    the server closes. `shared`: connections that the file descriptors allow, by default those of this process.
    """

    def __init__(
        self,
        service: CoordinatorService,
        *,
        token: str,
        agents: int = 1,
        tls: Tls | None = None,
        patience: float = _SHUTDOWN,
        shared: Shares | None = None,
    ) -> None:
        self._service, self._token, self._patience, self._tls = service, token.encode(), patience, tls
        self._count = _SERVERS if agents >= _CROWD and hasattr(socket, "SO_REUSEPORT") else 1
        shared = shared or shares(grpc=True)
        self.most = min(shared.relayed if tls is None else shared.grpc, 2 * agents + _SPARE)
        self._limits = _sweep_limits(self.most)
        self._port = GrpcPort(token, rejected=_REJECTED, most=self.most) if tls is None else None
        #: Peers of connections without the token: those since the last check, and those of the check before.
        self._rejected: set[tuple[str, int]] = set()
        self._answered: set[tuple[str, int]] = set()
        self._rejecting = asyncio.Event()
        self._sweeping: asyncio.Task[None] | None = None
        self._servers: list[Any] = []
        self._sessions: set[_Session] = set()
        self._heard: dict[str, set[_Session]] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port, a free one when `port` is 0. Raises `ConfigError` if the port cannot be opened."""
        try:
            if self._port is not None:
                return await self._relayed(self._port, host, port)
            if port and self._count > 1:
                _refuse_used(host, port)
            for _ in range(self._count):
                port = await self._listen(address(host, port))
        except (OSError, RuntimeError) as error:
            await self.close()
            raise ConfigError(f"cannot open port {port} on {host} for gRPC: {error}") from error
        self._sweeping = in_background(self._sweep(port), log, "closing unauthenticated gRPC connections")
        return port

    async def _relayed(self, guarded: GrpcPort, host: str, port: int) -> int:
        for _ in range(self._count):
            server = self._server()
            await guarded.add_server(server.add_insecure_port)
            await server.start()
        return await guarded.start(host, port)

    async def _sweep(self, port: int) -> None:
        """Close rejected connections, and unauthenticated ones while their number could exclude agents."""
        while True:
            ended = 0
            rejected, self._answered, self._rejected = self._answered, self._rejected, set()
            self._rejecting.clear()
            unknown = await asyncio.to_thread(descriptors_open) - len(self._sessions)
            if rejected or unknown > self._limits.strangers // 2:
                known = {session.peer for session in self._sessions}
                ended = await asyncio.to_thread(sweep, port, known, self._limits, rejected)
            if ended:
                log.warning("the coordinator closed %d unauthenticated connections at its gRPC port", ended)
                await asyncio.to_thread(release_memory)
            if ended or self._answered:
                await asyncio.sleep(_LOOK_AGAIN)
            else:
                await set_within(self._rejecting, _LOOK)

    async def _listen(self, where: str) -> int:
        server, tls = self._server(), self._tls
        assert tls is not None
        bound = int(server.add_secure_port(where, _credentials(tls)))
        await server.start()
        return bound

    def _server(self) -> Any:
        grpc, most = grpcio(), max(self._limits.most // self._count, 8)
        options = [
            *limits(),
            # Only between these servers: two coordinators on one port would each get some of the agents (`_refuse_used`).
            ("grpc.so_reuseport", int(self._count > 1)),
            ("grpc.max_concurrent_streams", _STREAMS),
            # All agents of a job may connect at once. A connection that ends leaves a pending stream, with its data.
            ("grpc.server.max_pending_requests", most),
            ("grpc.server.max_pending_requests_hard_limit", most),
            ("grpc.max_metadata_size", _METADATA),
            ("grpc.absolute_max_metadata_size", _METADATA),
            ("grpc.server_max_unrequested_time_in_server", _TAKEN_WITHIN),
            ("grpc.max_allowed_incoming_connections", most),
            ("grpc.server_handshake_timeout_ms", int(_PATIENCE * 1000)),
            ("grpc.max_connection_idle_ms", int(_PATIENCE * 1000)),
        ]
        server = grpc.aio.server(handlers=(self._handlers(),), options=options)
        self._servers.append(server)
        return server

    async def close(self) -> None:
        """Finish pending replies, end the streams, and stop listening."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._port is not None:
            await self._port.stop_listening()
        answers = [answer for session in self._sessions for answer in session.answers]
        if answers:
            await asyncio.wait(answers, timeout=self._patience)
        for session in tuple(self._sessions):
            session.end()
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(self._patience) for server in servers))
        if self._port is not None:
            await self._port.close(self._patience)

    def _handlers(self) -> Any:
        grpc = grpcio()
        session = grpc.stream_stream_rpc_method_handler(self._serve)
        stranger = grpc.stream_stream_rpc_method_handler(self._reject)
        server = self

        class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
            """Reject requests without the job's secret; the comparison takes constant time."""

            def service(self, details: Any) -> Any:
                told = next((value for key, value in details.invocation_metadata if key == TOKEN_KEY), "")
                told = told.encode() if isinstance(told, str) else told
                if not hmac.compare_digest(told, server._token):
                    return stranger
                return session if details.method == SESSION else None

        return Handlers()

    async def _serve(self, _: Any, context: Any) -> None:
        if self._tls is not None and self._tls.name.encode() not in context.auth_context().get(_NAMES, ()):
            await context.abort(
                grpcio().StatusCode.UNAUTHENTICATED, f"the client needs a TLS certificate with the DNS name {self._tls.name}"
            )
        session = _Session(self, context)
        self._sessions.add(session)
        try:
            await session.run()
        except _NotTakenError as error:
            await context.abort(error.status, error.told)
        finally:
            self._sessions.discard(session)

    async def _reject(self, _: Any, context: Any) -> None:
        """Reject a stream without the token; its connection is closed by `_sweep`."""
        self._rejected.add(_peer(context.peer()))
        self._rejecting.set()
        context.set_code(grpcio().StatusCode.UNAUTHENTICATED)
        context.set_details(_REJECTED)

    async def report(self, session: _Session, report: AgentReport) -> bytes:
        """Forward a report and return the reply for its stream."""
        self._heard.setdefault(report.agent, set()).add(session)
        return answer_to_bytes(report.sequence, await self._service.report(report))

    def ended(self, session: _Session, agents: set[str]) -> None:
        """Notify the service of agents whose last stream has ended."""
        for agent in agents:
            mine = self._heard[agent]
            mine.discard(session)
            if not mine:
                del self._heard[agent]
                self._service.hung_up(agent)


class _Session:
    """One agent's stream."""

    def __init__(self, server: GrpcServer, context: Any) -> None:
        self._server, self._context = server, context
        self.peer = _peer(context.peer())
        self._task, self._ending = asyncio.current_task(), False
        self._writing = asyncio.Lock()
        self._agents: set[str] = set()
        self.answers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve the stream until either side ends it; raises `_NotTakenError`."""
        eof = grpcio().aio.EOF
        try:
            while (data := await self._context.read()) is not eof:
                report = _report(data)
                self._agents.add(report.agent)
                answer = asyncio.ensure_future(self._answer(report))
                self.answers.add(answer)
                answer.add_done_callback(self.answers.discard)
        except asyncio.CancelledError:
            if not self._ending:
                raise
        finally:
            for answer in self.answers:
                answer.cancel()
            self._server.ended(self, self._agents)

    def end(self) -> None:
        """End the stream after pending messages have been delivered."""
        self._ending = True
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, report: AgentReport) -> None:
        answer = await self._server.report(self, report)
        async with self._writing:
            await self._context.write(answer)


def _credentials(tls: Tls) -> Any:
    """Return credentials with which each new connection uses the current certificate."""
    grpc = grpcio()
    used = tls.pem

    def configuration() -> Any:
        authority, certificate, key = used
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    def newer() -> Any:
        nonlocal used
        if tls.pem == used:
            return None
        used = tls.pem
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), newer, require_client_authentication=True)


def _sweep_limits(most: int) -> SweepLimits:
    return SweepLimits(most=most, strangers=max(most // 4, 4), patience=_PATIENCE)


def _peer(told: str) -> tuple[str, int]:
    """Return address and port of a gRPC peer, such as `ipv4:10.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    host, _, port = unquote(told).partition(":")[2].rpartition(":")
    try:
        return plain_address(host.strip("[]")), int(port)
    except ValueError:
        return told, 0


def _refuse_used(host: str, port: int) -> None:
    """Raise `OSError` if another process listens on the port: servers with a shared port would share it with that process."""
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)


def _report(data: bytes) -> AgentReport:
    status = grpcio().StatusCode
    try:
        return codec.loads(AgentReport, data)
    except codec.VersionError as error:
        raise _NotTakenError(status.FAILED_PRECONDITION, str(error)) from error
    except codec.WireError as error:
        raise _NotTakenError(status.INVALID_ARGUMENT, str(error)) from error
