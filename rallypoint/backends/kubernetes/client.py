"""Requests to one API server, on the official client's asyncio side: its session, its TLS and its credentials.

What is asked for and what comes back is plain JSON: of a pod's many fields a handful is wanted, and the client's own models
cost more time than everything else that a supervisor does.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import inspect
import itertools
import random
import socket
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp

from rallypoint.backends.kubernetes.access import Access, load_configuration
from rallypoint.backends.kubernetes.errors import ApiError, TooLargeError, UnreachableError, refusal
from rallypoint.kube.http import (
    LimitError,
    first_bytes,
    invalid_part,
    json_object,
    read_beginning,
    read_body,
    refuse_compressed,
)
from rallypoint.kube.own_thread import in_own_thread
from rallypoint.kube.time_slices import parts
from rallypoint.wire.bounds import LARGEST, VALUES, has_more_values
from rallypoint.wire.sanitize import LONG

__all__ = ["JSON_PATCH", "MERGE_PATCH", "PAGE_VALUES", "Api", "KubeApi", "cut_blocks", "lines_of", "parse", "whole_lines"]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

#: A connection on which nothing was said for so many seconds is probed, so often, and is given up after so many probes.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 120), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 6))

#: Seconds for a whole request that is no stream, and to open a connection.
_TIMEOUT, _CONNECT = 30.0, 10.0

#: How often a request is made that the server is too busy for, and how long it may ask us to wait, in seconds.
_TRIES, _LONGEST_WAIT = 4, 10.0

#: Requests at a time; others wait for their turn, and no time-out runs meanwhile: a thousand jobs that begin together are no
#: reason to say of a server that it does not answer. Streams are not counted: they last, and are few.
_AT_A_TIME = 64

#: Part of the paths where a pod answers.
_PROXY = "/proxy/"

#: Bytes of the largest answer of the API server that is read, and of an error, which is parsed on the event loop.
_LARGEST_ANSWER, _LARGEST_ERROR = 64 << 20, 1 << 20

#: Bytes of the longest line of a pod's log: readers keep many lines.
_LONGEST_LINE = 64 << 10

#: Bytes of the longest event of a watch. An object has up to 1.5 MiB, and JSON may need six bytes for one character.
_LONGEST_EVENT = 16 << 20

#: Values in such an answer: one object of 1.5 MiB always has fewer; and in a page of a list with several objects: Python frees
#: all of them at once, for which other threads wait.
_VALUES, PAGE_VALUES = 32 * VALUES, 4 * VALUES

#: Header of a request for a stream: aiohttp decompresses a block that was received without a limit, and never waits meanwhile.
_PLAIN = {"Accept-Encoding": "identity"}

_BROKEN = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class Api(Protocol):
    """The few things that are asked of an API server."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout: float = _TIMEOUT,
    ) -> bytes:
        """Return the body of the answer, or its first `limitBytes` bytes. Raises `ApiError` and `UnreachableError`."""
        ...

    def stream(
        self, path: str, *, query: Mapping[str, str] | None = None, silence: float = _TIMEOUT
    ) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield the lines of an answer as they come, with their ends; ends with the server's last byte, or after `limitBytes`.

        Raises `ApiError` and `UnreachableError`, the latter also after `silence` seconds without a byte.
        """
        ...

    async def time(self) -> float:
        """Return the server's own clock, in whole seconds since the epoch. Raises `ApiError` and `UnreachableError`."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class KubeApi:
    """The API server that `access` names, for one event loop. Connects when it is asked for something first.

    `asked` counts the requests by their method.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.asked: collections.Counter[str] = collections.Counter()
        self._client: Any = None
        self._opening, self._log_ins = asyncio.Lock(), 0
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout: float = _TIMEOUT,
    ) -> bytes:
        """Ask once; again when the server is too busy, or does not know our credentials any more. See `Api.request`."""
        return (await self._ask(method, path, query, body, {"Content-Type": kind, **(headers or {})}, timeout))[1]

    async def time(self) -> float:
        """Read the date of an answer that no pod can have given."""
        answer, _ = await self._ask("GET", "/version", None, None, {"Content-Type": "application/json"}, _TIMEOUT)
        date = answer.headers.get("Date", "")
        try:
            return parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError) as error:
            raise ApiError(
                "GET /version", status=502, said=f"the Date header in the response of the API server is invalid: {date!r}"
            ) from error

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        headers: dict[str, str],
        timeout: float,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT)
        for attempt in itertools.count():
            try:
                async with self._turns, await self._send(method, path, query, body, headers, limit) as answer:
                    data = await _content(answer, path, _limit_bytes(query))
            except _BROKEN as error:
                raise self._unreachable(method, path, error) from None
            if 200 <= answer.status < 300:
                return answer, bytes(data)
            if attempt + 1 >= _TRIES or not await self._may_ask_again(answer, attempt, path):
                raise refusal(f"{method} {path}", answer.status, data)
        raise AssertionError("internal error: a request to the API server has neither a response nor an error")

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str] | None = None, silence: float = _TIMEOUT
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a stream; see `Api.stream`."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=silence)
        try:
            answer = await self._send("GET", path, query, None, {"Content-Type": "application/json", **_PLAIN}, limit)
        except _BROKEN as error:
            raise self._unreachable("GET", path, error) from None
        async with answer:
            if answer.status == 401:
                await self._log_in_again()
            if answer.status != 200:
                raise refusal(f"GET {path}", answer.status, await read_beginning(answer, _LARGEST_ERROR))
            if self.access.credentials.tcp_keepalive:
                _probe_when_idle(answer)
            try:
                refuse_compressed(answer)
            except LimitError as error:
                raise ApiError(f"GET {path}", status=502, said=str(error)) from None
            yield self._lines(answer, path, _limit_bytes(query))

    async def _lines(self, answer: aiohttp.ClientResponse, path: str, limit: int | None) -> AsyncIterator[bytes]:
        every = answer.content.iter_any()
        chunks = every if limit is None else first_bytes(every, limit)
        try:
            async for line in cut_blocks(chunks) if path.endswith("/log") else whole_lines(chunks, path):
                yield line
        except _BROKEN as error:
            raise self._unreachable("GET", path, error) from None

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        headers: dict[str, str],
        limit: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        part = invalid_part(path)
        if part is not None:
            raise ApiError(f"{method} {path!r}", status=400, said=f"{part!r} is not a valid name of a Kubernetes object")
        client = await self._opened()
        self.asked[method] += 1
        url = client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        for setting in (await client.configuration.auth_settings()).values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        request = client.rest_client.request
        # Release 36 reads the body unless it is told not to; 37 never does.
        raw = {"_preload_content": False} if "_preload_content" in inspect.signature(request).parameters else {}
        answer = await request(method, url, headers=headers, body=body, _request_timeout=limit, **raw)
        response: aiohttp.ClientResponse = getattr(answer, "response", answer)
        return response

    async def _opened(self) -> Any:
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    self._client = await self._open()
        return self._client

    async def _open(self) -> Any:
        configuration = await self._configuration()
        configuration.connection_pool_maxsize = 0  # no limit: who asks waits for a turn
        from kubernetes.aio.client import ApiClient  # noqa: PLC0415  slow, and imported in the thread by now

        client = ApiClient(configuration)
        client.rest_client.pool_manager = _Session(client.rest_client.pool_manager)
        return client

    async def _log_in_again(self) -> None:
        """Tokens of exec plugins and of pods do not last for ever. Requests that come meanwhile wait for the same tokens."""
        before = self._log_ins
        async with self._opening:
            if self._log_ins != before:
                return
            self._log_ins += 1
            fresh = await self._configuration()
            if self._client is not None:
                self._client.configuration.api_key = fresh.api_key
                self._client.configuration.refresh_api_key_hook = fresh.refresh_api_key_hook

    async def _configuration(self) -> Any:
        return await in_own_thread(functools.partial(load_configuration, self.access), name="kubeconfig")

    async def _may_ask_again(self, answer: aiohttp.ClientResponse, attempt: int, path: str) -> bool:
        # A 401 of a pod is about the job's token.
        if answer.status == 401 and attempt == 0 and _PROXY not in path:
            await self._log_in_again()
            return True
        told = answer.headers.get("Retry-After", "")
        # Too busy means not begun, so a write may be repeated, too.
        if answer.status == 429 or (answer.status == 503 and told):
            wait = float(told[:9]) if told.isdecimal() else 0.5 * 2**attempt
            await asyncio.sleep(min(wait, _LONGEST_WAIT) * random.uniform(1.0, 1.2))  # noqa: S311  spread, not secret
            return True
        return False

    def _unreachable(self, method: str, path: str, error: Exception) -> UnreachableError:
        return UnreachableError(f"{method} {path}: no answer from {self.access}: {_words(error)[:1000]}")


def _words(error: Exception) -> str:
    """Return an error's text without URLs of the kubeconfig: aiohttp quotes that of a proxy with its password."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status} {error.message}".rstrip()
    if isinstance(error, aiohttp.ClientResponseError):
        return error.message or type(error).__name__
    if isinstance(error, aiohttp.InvalidURL):
        return "the URL is not valid"
    return str(error) or type(error).__name__


async def cut_blocks(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a pod's log in blocks of whole lines as they come; of a longer line only the first `_LONGEST_LINE` bytes.

    A program in a pod may write megabytes without a line end, for example a progress bar. Only the last block may end without
    one.
    """
    rest, cut = bytearray(), False  # of the last line; a part may have only a few bytes of it
    async for part in parts(chunks):
        whole, end, last = part.rpartition(b"\n")
        if end:
            # A part is no longer than the longest line, so only the first line can be too long.
            first, more, others = whole.partition(b"\n")
            block = others + more if cut else (rest + first)[:_LONGEST_LINE] + end + others + more
            rest, cut = bytearray(), False
            if block:
                yield bytes(block)
        if not cut:
            rest += last
        if len(rest) > _LONGEST_LINE:
            yield bytes(rest[:_LONGEST_LINE]) + b"\n"
            rest, cut = bytearray(), True
    if rest:
        yield bytes(rest)


def lines_of(block: bytes) -> list[bytes]:
    """Return the lines of a block with their ends. A carriage return, as of a progress bar, ends no line."""
    *lines, rest = block.split(b"\n")
    return [*(line + b"\n" for line in lines), *((rest,) if rest else ())]


async def whole_lines(chunks: AsyncIterable[bytes], path: str) -> AsyncIterator[bytes]:
    """Yield the events of a watch with their line ends, and what follows the last one; no empty lines.

    Raises `TooLargeError` for a longer line than an API server sends.
    """
    rest = bytearray()
    async for part in parts(chunks):
        *lines, last = part.split(b"\n")
        for line in lines:
            if line or rest:
                yield bytes(rest) + line + b"\n"
                rest = bytearray()
        rest += last
        if len(rest) > _LONGEST_EVENT:
            raise TooLargeError(f"GET {path}", status=502, said=f"an event of the watch has more than {_LONGEST_EVENT} bytes")
    if rest:
        yield bytes(rest)


class _Session:
    """The session of a client, which returns a redirect as the answer, and decompresses no stream.

    The answer of a proxied request comes from a pod. A script of a job could redirect it to any path of the API server, where
    aiohttp would repeat it with the credentials of the supervisor.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, **arguments: Any) -> aiohttp.ClientResponse:
        """Send a request."""
        plain = _PLAIN.items() <= arguments["headers"].items()
        return await self._session.request(**{**arguments, "allow_redirects": False, "auto_decompress": not plain})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _limit_bytes(query: Mapping[str, str] | None) -> int | None:
    """Return after how many bytes a log is requested to end, which a server may ignore."""
    limit = (query or {}).get("limitBytes")
    return None if limit is None else int(limit)


async def _content(answer: aiohttp.ClientResponse, path: str, limit: int | None) -> bytes:
    """Return the body of an answer; raises `ApiError` where a pod or a server sends more than a job can need.

    Args:
        limit: bytes after which the body ends; of an error, only the beginning is read, too.
    """
    if not 200 <= answer.status < 300:
        return await read_beginning(answer, _LARGEST_ERROR)
    if limit is not None:
        return await read_beginning(answer, limit)
    try:
        return await read_body(answer, LARGEST if _PROXY in path else _LARGEST_ANSWER)
    except LimitError as error:
        raise TooLargeError(path, status=502, said=str(error)) from None


async def parse(data: bytes, what: str, *, values: int = _VALUES) -> dict[str, Any]:
    """Return an answer's JSON; raises `ApiError` where something between us and the server answered in its place.

    Raises `TooLargeError` for more `values` than an object can have: their size in memory is many times that of the text. The
    event loop runs while a long answer is read.
    """
    return _parse(data, what, values) if len(data) < LONG else await asyncio.to_thread(_parse, data, what, values)


def _parse(data: bytes, what: str, values: int) -> dict[str, Any]:
    if has_more_values(data, values):
        raise TooLargeError(what, status=502, said=f"the response of the API server has more than {values} JSON values")
    try:
        return json_object(data)
    except ValueError as error:
        raise ApiError(what, status=502, said=str(error)) from error


def _probe_when_idle(answer: aiohttp.ClientResponse) -> None:
    """Have the system ask after a stream on which nothing is said: what lies between us and the server forgets those.

    Other connections are closed by the client before they have been silent for long.
    """
    connection = answer.connection
    transport = connection.transport if connection is not None else None
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            found.setsockopt(socket.IPPROTO_TCP, option, value)
