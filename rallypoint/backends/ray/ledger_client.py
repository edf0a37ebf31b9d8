"""Calls of a ledger, on connections on which the ledger has proven that it has its key.

After a ledger has ended, any user of its machine can listen at its last address. So each connection begins with a request for
the health page, whose response has the proof (`wire/proof.py`), and neither the key nor a call is sent before. The page has the
ledger's address, so a program elsewhere cannot forward the proof of a ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp

from rallypoint.backends.contract import BackendError
from rallypoint.backends.ray.line import PATH, health_page
from rallypoint.kube.http import LimitError, read_body, refuse_compressed
from rallypoint.wire.paths import HEALTH_PATH
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, is_proven, new_nonce

__all__ = ["BROKEN", "CONNECT", "LARGEST_ANSWER", "LedgerClient", "LedgerLostError", "new_session", "read_answer", "words"]

#: Seconds to open a connection, and for its proof.
CONNECT = 10.0

#: Connections to one ledger.
_CONNECTIONS = 64

#: Bytes of an answer of dashboard or ledger: any program on the cluster can make it as large as it likes; and of a health page.
LARGEST_ANSWER, _LARGEST_PAGE = 32 << 20, 4096

#: Errors of a request whose connection failed.
BROKEN = (aiohttp.ClientError, asyncio.TimeoutError, OSError)

#: Marks the requests that may open a connection.
_PROVING = "proof"


class LedgerLostError(BackendError):
    """The ledger does not answer at its last address."""


class _NotConnectedError(Exception):
    """A request needs a new connection, whose other end has proven nothing."""


class LedgerClient:
    """The connections to one ledger. For one event loop."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self._key = url, key
        self._free: list[_Connection] = []
        self._slots = asyncio.Semaphore(_CONNECTIONS)
        self._closed = False

    async def prove(self) -> None:
        """Connect to the ledger and check its proof; raises `LedgerLostError`."""
        await self._on_connection(_Connection.prove, CONNECT)

    async def post(self, method: str, body: bytes, *, timeout: float) -> bytes:
        """Return the response to a call; raises `LedgerLostError`, also after `timeout` seconds."""
        return await self._on_connection(lambda connection: connection.post(method, body), timeout)

    async def close(self) -> None:
        """Close each connection, one that has a call when the call has ended."""
        self._closed = True
        while self._free:
            await self._free.pop().close()

    async def _on_connection(self, use: _Use, timeout: float) -> bytes:
        try:
            return await asyncio.wait_for(self._use(use), timeout)
        except (*BROKEN, LimitError, ValueError) as error:
            raise LedgerLostError(f"cannot reach the ledger at {self.url}: {words(error)}") from error

    async def _use(self, use: _Use) -> bytes:
        async with self._slots:
            connection = self._free.pop() if self._free else _Connection(self.url, self._key)
            try:
                answer = await use(connection)
            except BaseException:
                await connection.close()
                raise
            if self._closed:
                await connection.close()
            else:
                self._free.append(connection)
            return answer


class _Connection:
    """One connection, or none after it was closed. One call at a time has it: no other call can use it before the proof."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(_require_proof)
        self._session = new_session(connections=1, tracing=tracing)

    async def close(self) -> None:
        await self._session.close()

    async def post(self, method: str, body: bytes) -> bytes:
        """Return the response to a call, which is sent after the proof; raises `LedgerLostError` without the proof."""
        try:
            return await self._post(method, body)
        except _NotConnectedError:
            await self.prove()
        try:
            return await self._post(method, body)
        except _NotConnectedError:
            raise LedgerLostError(f"the ledger at {self._url} closed a new connection") from None

    async def _post(self, method: str, body: bytes) -> bytes:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        url = f"{self._url}{PATH}{method}"
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            return await read_answer(answer, LARGEST_ANSWER)

    async def prove(self) -> bytes:
        """Check the proof on this connection, which is opened unless it is open; raises `LedgerLostError` without the proof."""
        nonce = new_nonce()
        async with self._session.get(
            f"{self._url}{HEALTH_PATH}",
            headers={NONCE_HEADER: nonce},
            timeout=aiohttp.ClientTimeout(total=CONNECT),
            allow_redirects=False,
            trace_request_ctx=_PROVING,
        ) as answer:
            page = await read_answer(answer, _LARGEST_PAGE)
            proof = answer.headers.get(PROOF_HEADER, "")
        if not is_proven(self._key, nonce, health_page(self._url), proof):
            raise LedgerLostError(
                f"the program at {self._url} has not proven that it has the key of the ledger; check that the nodes of the "
                "cluster have this version of the package airflow-provider-rallypoint"
            )
        return page


_Use = Callable[[_Connection], Awaitable[bytes]]


async def _require_proof(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    """Prevent a request other than that for the proof from opening a connection."""
    if context.trace_request_ctx != _PROVING:
        raise _NotConnectedError


def new_session(*, connections: int, tracing: aiohttp.TraceConfig | None = None) -> aiohttp.ClientSession:
    """Return a session without limits of time, which each request has, with at most so many connections."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT),
        connector=aiohttp.TCPConnector(limit=connections),
        # A few kilobytes of a compressed answer are gigabytes of text.
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
        trace_configs=[] if tracing is None else [tracing],
    )


async def read_answer(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of an answer; raises `LimitError` where it is longer than `limit` bytes, or compressed."""
    refuse_compressed(answer)
    return await read_body(answer, limit)


def words(error: Exception) -> str:
    """Return the text of an error, or its kind where it has none."""
    return str(error) or type(error).__name__
