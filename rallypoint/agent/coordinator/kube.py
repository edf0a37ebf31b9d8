"""The few requests to a Kubernetes API server that a coordinator makes in its pod; no other package is needed for them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import email.utils
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from rallypoint.agent.coordinator.namespaced import Namespaced
from rallypoint.agent.errors import ConfigError
from rallypoint.kube.http import SERVICE_ACCOUNT, LimitError, invalid_part, json_object, read_body, read_refusal
from rallypoint.wire import env
from rallypoint.wire.bounds import read_count
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.sanitize import LONG

__all__ = ["ApiError", "KubeApi", "config_map_path", "lease_path"]

#: Seconds for a connection, and for a whole request.
_CONNECT, _TOTAL = 5.0, 10.0

#: Bytes of the largest answer that is read.
_ANSWER_LIMIT = 4 << 20

#: Characters of an error's text.
_SHOWN = 300


class ApiError(RallypointError):
    """The API server did not do what it was asked for.

    `status` is that of HTTP, 0 where there was no answer; `retry_after` how many seconds it wants to be left alone.
    """

    def __init__(self, message: str, *, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after

    @property
    def refused(self) -> bool:
        """We may not do this; asking again does not help until somebody changes our rights."""
        return self.status in (401, 403)


def config_map_path(place: Namespaced) -> str:
    """Return the path of a ConfigMap."""
    return f"/api/v1/namespaces/{place.namespace}/configmaps/{place.name}"


def lease_path(place: Namespaced) -> str:
    """Return the path of a Lease."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{place.namespace}/leases/{place.name}"


class KubeApi:
    """One API server, and who we are to it. The token is read anew for each request: Kubernetes replaces it now and then."""

    def __init__(self, server: str, *, token_file: Path, ca_file: Path) -> None:
        self.server, self._token_file, self._ca_file = server.rstrip("/"), token_file, ca_file
        self._session: aiohttp.ClientSession | None = None
        self._ahead: float | None = None

    @property
    def server_time(self) -> str | None:
        """The server's own time now, as Kubernetes writes times; None before its first answer.

        It is the date of its last answer and what this machine's monotonic clock has counted since.
        """
        if self._ahead is None:
            return None
        try:
            moment = datetime.datetime.fromtimestamp(time.monotonic() + self._ahead, datetime.timezone.utc)
        except (ValueError, OverflowError, OSError):
            return None
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    @classmethod
    def of_this_pod(cls, base: Mapping[str, str]) -> KubeApi:
        """Return the API server of the cluster that this pod is in; raises `ConfigError` where it is in none."""
        account = Path(base.get(env.SERVICE_ACCOUNT) or SERVICE_ACCOUNT)
        server = base.get(env.API_SERVER, "")
        host, port = base.get("KUBERNETES_SERVICE_HOST", ""), base.get("KUBERNETES_SERVICE_PORT", "443")
        if not server and not host:
            where = f"KUBERNETES_SERVICE_HOST (or {env.API_SERVER})"
            raise ConfigError(f"--status-configmap: works only in a pod; the environment variable {where} is not set")
        server = server or f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return cls(server, token_file=account / "token", ca_file=account / "ca.crt")

    async def get(self, path: str) -> dict[str, Any]:
        """Return an object; raises `ApiError`."""
        return await self._request("GET", path, None, {})

    async def merge_patch(self, path: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Change an object (RFC 7396) and return it; raises `ApiError`: 409 where its `resourceVersion` is not the newest."""
        body = json.dumps(change, ensure_ascii=False).encode()
        return await self._request("PATCH", path, body, {"Content-Type": "application/merge-patch+json"})

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> dict[str, Any]:
        where = f"{method} {path}"
        part = invalid_part(path)
        if part is not None:
            raise ApiError(f"request {method} {path!r} was not sent: {part!r} is not a valid name of a Kubernetes object")
        session = await self._open()
        told = {"Accept": "application/json", **headers, **await asyncio.to_thread(self._authorization)}
        try:
            async with session.request(method, self.server + path, data=body, headers=told, allow_redirects=False) as response:
                answer = await read_body(response, _ANSWER_LIMIT)
                self._note_date(response.headers.get("Date", ""))
        except LimitError as error:
            raise ApiError(f"{where}: {error}") from None
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise ApiError(f"{where}: {str(error) or type(error).__name__}") from error
        if response.status >= 300:
            after = response.headers.get("Retry-After", "")
            raise ApiError(
                f"{where}: HTTP {response.status}: {read_refusal(answer).message[:_SHOWN]}",
                status=response.status,
                retry_after=float(read_count(after) or 0),
            )
        try:
            return json_object(answer) if len(answer) < LONG else await asyncio.to_thread(json_object, answer)
        except ValueError as error:
            raise ApiError(f"{where}: {error}") from error

    def _note_date(self, text: str) -> None:
        with contextlib.suppress(ValueError, TypeError):
            self._ahead = email.utils.parsedate_to_datetime(text).timestamp() - time.monotonic()

    def _authorization(self) -> dict[str, str]:
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError):  # the pod has none: what anybody may do it may do
            return {}
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            secure = self.server.startswith("https:")
            context = await asyncio.to_thread(self._trust) if secure else False
            connector = aiohttp.TCPConnector(limit=4, ssl=context)
            limits = aiohttp.ClientTimeout(total=_TOTAL, sock_connect=_CONNECT)
            self._session = aiohttp.ClientSession(connector=connector, timeout=limits)
        return self._session

    def _trust(self) -> ssl.SSLContext:
        ours = str(self._ca_file) if self._ca_file.exists() else None
        return ssl.create_default_context(cafile=ours)
