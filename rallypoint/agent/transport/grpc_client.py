"""The agent's side of the gRPC transport."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from rallypoint.agent.errors import ConfigError, UnreachableError
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.grpc_words import SESSION, TOKEN_KEY, address, answer_from_bytes, grpcio, limits
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import AgentReport, Reply

__all__ = ["GrpcExchange"]

#: Milliseconds for a connection to be made.
_CONNECT = 5000

#: Seconds beyond the time for which an answer may be held back, after which its stream is no longer trusted.
_SLACK = 10.0


class GrpcExchange:
    """One stream to the coordinator that is talked to, and those before it whose end would be news to somebody."""

    def __init__(self, token: str, tls: Tls | None = None) -> None:
        self._token, self._tls = token, tls
        self._stream: _Stream | None = None
        self._older: set[_Stream] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        """See `Exchange.exchange`; the coordinator's port is `endpoint.grpc`."""
        stream = self._stream_for(endpoint, report)
        asked = stream.ask(report)
        try:
            done, _ = await asyncio.wait({asked}, timeout=timeout)
        except asyncio.CancelledError:
            self._give_up(stream, report)
            raise
        if not done:
            self._give_up(stream, report)
            raise UnreachableError(f"{stream.where}: no answer within {timeout:.0f} s")
        reply = asked.result()
        # Heard over this one: now the end of the others is no longer that of this agent.
        for older in tuple(self._older - {stream}):
            self._end(older)
        return reply

    async def close(self) -> None:
        """See `Exchange.close`."""
        for stream in (*self._older, *filter(None, (self._stream,))):
            self._end(stream)
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

    def _stream_for(self, endpoint: Endpoint, report: AgentReport) -> _Stream:
        """Return the stream for a report: a fresh one where there is none, or the last one seems to lead nowhere."""
        where, stream = address(endpoint.host, endpoint.grpc), self._stream
        if stream is not None and (stream.ended or stream.where != where or stream.doubtful(report)):
            (self._end if stream.ended else self._older.add)(stream)
            stream = None
        if stream is None:
            stream = self._stream = _Stream(where, self._token, self._tls)
        return stream

    def _give_up(self, stream: _Stream, report: AgentReport) -> None:
        """Drop a report. With the last that was said over a stream the stream goes, too."""
        if stream.forget(report):
            self._end(stream)

    def _end(self, stream: _Stream) -> None:
        self._older.discard(stream)
        if self._stream is stream:
            self._stream = None
        closing = asyncio.ensure_future(stream.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class _Stream:
    """One connection with its one stream."""

    def __init__(self, where: str, token: str, tls: Tls | None) -> None:
        grpc = grpcio()
        self.where, self._tls, self._loop = where, tls, asyncio.get_running_loop()
        options = [
            *limits(),
            # A connection of its own each: one that leads nowhere must not be shared with the try that replaces it.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.min_reconnect_backoff_ms", _CONNECT),
        ]
        if tls is None:
            self._channel = grpc.aio.insecure_channel(where, options=options)
        else:
            authority, certificate, key = tls.pem
            credentials = grpc.ssl_channel_credentials(authority, key, certificate)
            options.append(("grpc.ssl_target_name_override", tls.name))
            self._channel = grpc.aio.secure_channel(where, credentials, options=options)
        self._call = self._channel.stream_stream(SESSION)(metadata=((TOKEN_KEY, token),))
        self._asked: dict[int, tuple[asyncio.Future[Reply], float]] = {}
        self._newest = -1
        self._unsaid: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended = False
        self._tasks = [asyncio.ensure_future(self._say()), asyncio.ensure_future(self._hear())]

    def ask(self, report: AgentReport) -> asyncio.Future[Reply]:
        """Send a report; what is returned ends with the answer, or with the stream."""
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._asked[report.sequence] = (answer, self._loop.time() + report.hold + _SLACK)
        self._newest = max(self._newest, report.sequence)
        self._unsaid.put_nowait(codec.dumps(report).encode())
        return answer

    def doubtful(self, report: AgentReport) -> bool:
        """Return whether something should have been answered by now; a report that is sent again was waited for."""
        now = self._loop.time()
        return report.sequence in self._asked or any(until < now for _, until in self._asked.values())

    def forget(self, report: AgentReport) -> bool:
        """Wait for an answer no more, and return whether nothing newer was said."""
        asked = self._asked.pop(report.sequence, None)
        if asked is not None:
            asked[0].cancel()
        return report.sequence >= self._newest

    async def close(self) -> None:
        """End it, the second time with no effect; who waits for an answer is told that there will be none."""
        self._fail(UnreachableError(f"{self.where}: closed"))
        for task in self._tasks:
            task.cancel()
        call, channel, tasks = self._call, self._channel, self._tasks
        # What refers to them is a cycle, and the connection would stay open until the collector comes by.
        self._call, self._channel, self._tasks = None, None, []
        if call is not None:
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await channel.close()

    async def _say(self) -> None:
        """Write what there is to say; gRPC takes one message at a time."""
        with contextlib.suppress(asyncio.InvalidStateError, grpcio().RpcError):  # how it ended is heard by `_hear`
            while True:
                await self._call.write(await self._unsaid.get())

    async def _hear(self) -> None:
        grpc = grpcio()
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                sequence, reply = answer_from_bytes(data)
                asked = self._asked.pop(sequence, None)
                if asked is not None and not asked[0].done():
                    asked[0].set_result(reply)
            code, told = await self._call.code(), await self._call.details()
            self._fail(self._error(code, told))
        except grpc.RpcError as error:
            self._fail(self._error(error.code(), error.details()))
        except codec.VersionError as error:
            self._fail(ConfigError(f"invalid response from the coordinator at {self.where}: {error}"))
        except codec.WireError as error:
            self._fail(UnreachableError(f"{self.where}: {error}"))

    def _error(self, code: Any, told: str | None) -> ConfigError | UnreachableError:
        if code is grpcio().StatusCode.FAILED_PRECONDITION:
            return ConfigError(f"the coordinator at {self.where} rejected the request: {told}")
        hint = "" if self._tls is None else self._tls.hint()
        return UnreachableError(f"{self.where}: gRPC {code.name}: {told or 'the stream was closed'}{hint}")

    def _fail(self, error: Exception) -> None:
        self.ended = True
        asked, self._asked = self._asked, {}
        for answer, _ in asked.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever waits is told; nobody may be left to do so
