"""The agent's side of the HTTP transport."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp

from rallypoint.agent.errors import ConfigError, UnreachableError
from rallypoint.agent.tls import Tls, explain
from rallypoint.agent.transport.http_server import SERVICE_NAME, VERSION_REFUSED
from rallypoint.agent.transport.service import BODY_LIMIT, KEPT
from rallypoint.wire import codec
from rallypoint.wire.bounds import LARGEST
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import TOKEN_HEADER, AgentReport, Reply, reply_from_json
from rallypoint.wire.paths import HEALTH_PATH, REPORT_PATH
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, is_proven, new_nonce
from rallypoint.wire.sanitize import parse

__all__ = ["HttpExchange", "grpc_port", "health", "scheme", "secured", "speaks_rallypoint", "trouble"]

log = logging.getLogger("rallypoint.transport")

#: Seconds for a connection to be made.
_CONNECT = 5.0

#: Seconds for a coordinator to say that it is one.
_HEALTH = 3.0


class HttpExchange:
    """One persistent session; connections to the coordinator are kept between reports."""

    def __init__(self, token: str, tls: Tls | None = None) -> None:
        self._token, self._tls = token, tls
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        """See `Exchange.exchange`."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT)
            self._session = aiohttp.ClientSession(connector=connector, headers={TOKEN_HEADER: self._token})
        url = f"{scheme(self._tls)}://{endpoint.address}{REPORT_PATH}"
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(_CONNECT, timeout))
        try:
            body = codec.dumps(report).encode()
            async with self._session.post(
                url, data=body, timeout=limits, allow_redirects=False, **secured(self._tls)
            ) as response:
                body = await _content(response)
        except asyncio.TimeoutError as error:
            raise UnreachableError(f"{url}: no answer within {timeout:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{url}: {trouble(error, self._tls)}") from error
        return _read(url, response.status, body)

    async def close(self) -> None:
        """See `Exchange.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """Return the body; raises `OSError` where it is larger than a reply can be."""
    content = bytearray()
    async for block in response.content.iter_any():
        content += block
        if len(content) > LARGEST:
            raise OSError(f"the response of the coordinator has more than {LARGEST} bytes")
    return bytes(content)


def _read(url: str, status: int, body: bytes) -> Reply:
    reason = body[:200].decode(errors="replace")
    if status == VERSION_REFUSED:
        raise ConfigError(f"the coordinator at {url} rejected the request: {reason}")
    if status != 200:
        raise UnreachableError(f"the request to the coordinator at {url} failed with HTTP status {status}: {reason}")
    try:
        return reply_from_json(parse(body))
    except codec.VersionError as error:
        raise ConfigError(f"invalid response from the coordinator at {url}: {error}") from error
    except ValueError as error:  # WireError is one
        raise UnreachableError(f"{url}: {error}") from error


def scheme(tls: Tls | None) -> str:
    """Return how a URL begins."""
    return "http" if tls is None else "https"


def secured(tls: Tls | None) -> dict[str, Any]:
    """Return the arguments of a request to a part of the job."""
    return {} if tls is None else {"ssl": tls.client, "server_hostname": tls.name}


def trouble(error: Exception, tls: Tls | None) -> str:
    """Return what went wrong with a connection."""
    return str(error) if tls is None else f"{explain(error)}{tls.hint()}"


async def speaks_rallypoint(endpoint: Endpoint, tls: Tls | None = None, *, token: str = "") -> bool | None:
    """Return whether a coordinator listens at `endpoint`; None if no program listens there (yet).

    With a `token`, only a coordinator that proves that it has this token counts.
    """
    found = await _who(endpoint, tls, token)
    return None if found is None else found.get("service") == SERVICE_NAME


async def grpc_port(endpoint: Endpoint, tls: Tls | None = None, *, token: str = "") -> int | None:
    """Return the port on which the coordinator at `endpoint` speaks gRPC, 0 where it does not; None when none answers.

    With a `token`, another program than a coordinator that has the token does not count.
    """
    found = await _who(endpoint, tls, token)
    if found is None or found.get("service") != SERVICE_NAME:
        return None
    port = found.get("grpc", 0)
    return port if type(port) is int else 0


async def health(session: aiohttp.ClientSession, url: str, tls: Tls | None, token: str) -> tuple[int, dict[str, Any] | None]:
    """Return the HTTP status and the health page of a server; None for another page, and without its proof.

    Over TLS its certificate is the proof, and no proof is needed without `token`. Raises what aiohttp raises, and `ValueError`.
    """
    nonce = new_nonce()
    headers = {NONCE_HEADER: nonce} if token else {}
    async with session.get(url, headers=headers, allow_redirects=False, **secured(tls)) as response:
        text = await response.content.read(BODY_LIMIT)
        proof = response.headers.get(PROOF_HEADER, "")
        if response.status == 400:
            log.warning("%s: HTTP 400: %s", url, text[:200].decode(errors="replace"))
    body = parse(text)
    if not isinstance(body, dict):
        return response.status, None
    if token and tls is None and not is_proven(token, nonce, text, proof):
        log.warning("%s: the server has not proven that it has the secret of this job; do all nodes have the same secret?", url)
        return response.status, None
    return response.status, body


async def _who(endpoint: Endpoint, tls: Tls | None, token: str) -> dict[str, Any] | None:
    """Return what the health of `endpoint` tells, nothing where it is none of ours, or None when nobody is there."""
    url = f"{scheme(tls)}://{endpoint.address}{HEALTH_PATH}"
    timeout = aiohttp.ClientTimeout(total=_HEALTH)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            _, body = await health(session, url, tls, token)
        except aiohttp.ClientSSLError as error:
            log.warning("%s: %s", url, trouble(error, tls))
            return {}
        except aiohttp.ClientConnectorError:
            return None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError):
            return {}
    return body or {}
