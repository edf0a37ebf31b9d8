"""A tiny API server: ConfigMaps and Leases by their path, with versions, and with whatever goes wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from rallypoint.agent.coordinator.kube import KubeApi

__all__ = ["FakeApi", "serving"]


class FakeApi:
    """What it holds, and what was asked of it.

    `failures` are answered first, one by one: an HTTP status and headers. `forbidden` are paths that nobody may touch with the
    given method; `before` runs just ahead of a write: somebody else may be quicker.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.tokens: list[str] = []
        self.failures: list[tuple[int, dict[str, str]]] = []
        self.forbidden: set[tuple[str, str]] = set()
        self.rivals: list[tuple[str, dict[str, str]]] = []
        self.writes = 0
        self._version = 100

    def put(self, path: str, **fields: Any) -> None:
        """Write an object, as somebody else does."""
        self._version += 1
        metadata = {"name": path.rpartition("/")[2], "uid": "uid", "resourceVersion": str(self._version)}
        self.objects[path] = {"metadata": metadata, **fields}

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request."""
        self.asked.append((request.method, request.path))
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.failures:
            status, headers = self.failures.pop(0)
            return _status(status, "as the test wants it", headers)
        if (request.method, request.path) in self.forbidden:
            return _status(403, f'cannot {request.method} "{request.path}"')
        if request.method == "PATCH" and self.rivals:
            path, data = self.rivals.pop(0)
            self.put(path, data=data)
        found = self.objects.get(request.path)
        if found is None:
            return _status(404, f"{request.path} not found")
        if request.method == "PATCH":
            return self._patch(request.path, found, await request.read())
        return web.json_response(found)

    def _patch(self, path: str, found: dict[str, Any], body: bytes) -> web.Response:
        change = json.loads(body)
        if change["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified")
        self.put(path, data={**(found.get("data") or {}), **change["data"]})
        self.objects[path]["metadata"]["annotations"] = change["metadata"].get("annotations") or {}
        self.writes += 1
        return web.json_response(self.objects[path])


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code, headers=headers)


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[FakeApi, KubeApi, str]]:
    """Yield the server, a client of it, and its URL; the client's token is `folder`/token."""
    fake = FakeApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = KubeApi(url, token_file=folder / "token", ca_file=folder / "ca.crt")
    try:
        yield fake, api, url
    finally:
        await api.close()
        await runner.cleanup()
