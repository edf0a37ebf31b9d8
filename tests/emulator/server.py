"""The API over HTTP: every request for objects comes through here."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.emulator import discovery, reviews
from tests.emulator.access import Access, User
from tests.emulator.api import Api, Write
from tests.emulator.apply import applied
from tests.emulator.bodies import Body, clone
from tests.emulator.errors import ApiError, bad_request, expired, success
from tests.emulator.faults import WRITES, Faults
from tests.emulator.patches import json_patch, merge_patch
from tests.emulator.paths import Asked, read_path
from tests.emulator.reading import flag, list_bytes, number, read_body, revision_of
from tests.emulator.selectors import selector
from tests.emulator.store import Version
from tests.emulator.strategic import strategic_merge
from tests.emulator.watching import Hub, Watcher, bookmark, error_line, event_line

__all__ = ["Server", "Subresource"]

#: Answers a request for a subresource that is more than a part of an object.
Subresource = Callable[[web.Request, Asked], Awaitable[web.StreamResponse]]

#: Seconds between bookmarks, and the life of a watch that names none.
BOOKMARK_EVERY, WATCH_LASTS = 60.0, 1800


class Server:
    """Answers requests; what the pods' own subresources do is given to it by name (`pods/log`)."""

    def __init__(self, api: Api, access: Access, faults: Faults, *, bookmark_every: float = BOOKMARK_EVERY) -> None:
        self.api, self.access, self.faults = api, access, faults
        self.hub = Hub(api.store)
        self.subresources: dict[str, Subresource] = {}
        self.requests: dict[tuple[str, str, str], int] = {}
        self._streams: set[asyncio.Transport] = set()
        self._bookmark_every = bookmark_every

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        try:
            return await self._answer(request)
        except ApiError as error:
            return web.json_response(error.body(), status=error.code, headers=error.headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        user = self.access.user_of(request.headers.get("Authorization", ""))
        if self.faults.hit("outage", None, user):
            return _hang_up(request)
        if (told := discovery.answer(self.api.kinds, request.path)) is not None:
            return web.json_response(told)
        if request.path in {"/healthz", "/livez", "/readyz"}:
            return web.Response(text="ok")
        asked = read_path(self.api.kinds, request.method, request.path, watch=flag(request, "watch"))
        counted = (user.name, asked.verb, asked.target)
        self.requests[counted] = self.requests.get(counted, 0) + 1
        if self.faults.hit("outage", asked, user):
            return _hang_up(request)
        if fault := self.faults.hit("latency", asked, user):
            await asyncio.sleep(fault.seconds)
        self.access.check(user, asked)
        self.faults.refuse(asked, user)
        response = await self._perform(request, asked, user)
        if asked.verb in WRITES and self.faults.hit("lost_answer", asked, user):
            return _hang_up(request)
        return response

    async def _perform(self, request: web.Request, asked: Asked, user: User) -> web.StreamResponse:
        if (special := self.subresources.get(f"{asked.resource.plural}/{asked.subresource}")) is not None:
            return await special(request, asked)
        if (made := reviews.answer(asked, user, self.access, (await read_body(request))[1])) is not None:
            return web.json_response(made, status=201)
        if asked.verb == "watch":
            return await self._watch(request, asked, user)
        if asked.verb == "list":
            return _raw(list_bytes(request, self.api, asked))
        if asked.verb == "get":
            return _raw(self.api.get(asked.resource, asked.namespace, asked.name).encoded())
        return await self._write(request, asked)

    async def _write(self, request: web.Request, asked: Asked) -> web.Response:
        patch, body = await read_body(request)
        dry = request.query.get("dryRun") == "All"
        write = Write(
            dry=dry,
            manager=request.query.get("fieldManager") or request.headers.get("User-Agent", "").split("/")[0] or "unknown",
        )
        if asked.verb == "delete":
            return self._delete(request, asked, body, dry=dry)
        if asked.verb == "deletecollection":
            return self._delete_all(request, asked, body, dry=dry)
        if asked.verb == "create":
            if body is None:
                raise bad_request("the body of the request is empty")
            return web.json_response(self.api.create(asked.resource, asked.namespace, body, write), status=201)
        if asked.verb == "update":
            return web.json_response(
                self.api.replace(asked.resource, asked.namespace, asked.name, body, subresource=asked.subresource, write=write)
            )
        if patch == "apply":
            return self._apply(request, asked, body, dry=dry)
        return web.json_response(self._patch(asked, patch, body, write))

    def _patch(self, asked: Asked, patch: str, body: Any, write: Write) -> Body:
        old = self.api.get(asked.resource, asked.namespace, asked.name).body
        if patch == "strategic" and asked.resource.custom:
            raise ApiError(
                415, "UnsupportedMediaType", "application/strategic-merge-patch+json is not supported by custom resources"
            )
        new = {"merge": merge_patch, "json": json_patch, "strategic": strategic_merge}[patch](clone(old), body)
        return self.api.update(asked.resource, old, clone(new), subresource=asked.subresource, write=write)

    def _apply(self, request: web.Request, asked: Asked, body: Any, *, dry: bool) -> web.Response:
        manager = request.query.get("fieldManager")
        if not manager:
            raise bad_request("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply patch")
        body = {**body, "metadata": {**(body.get("metadata") or {}), "name": asked.name}}
        found = self.api.store.get(asked.resource.key, asked.namespace, asked.name)
        old = found.body if found else None
        new = applied(asked.resource, old, body, manager, force=flag(request, "force"))
        write = Write(dry=dry, manager=manager, applied=True)
        if old is None:
            return web.json_response(self.api.create(asked.resource, asked.namespace, new, write), status=201)
        return web.json_response(self.api.update(asked.resource, old, clone(new), subresource=asked.subresource, write=write))

    def _options(self, request: web.Request, body: Any) -> Body:
        options = dict(body or {})
        for name in ("propagationPolicy", "orphanDependents"):
            if name in request.query:
                options[name] = request.query[name] == "true" if name == "orphanDependents" else request.query[name]
        if (grace := number(request, "gracePeriodSeconds")) is not None:
            options["gracePeriodSeconds"] = grace
        return options

    def _delete(self, request: web.Request, asked: Asked, body: Any, *, dry: bool) -> web.Response:
        last = self.api.delete(asked.resource, asked.namespace, asked.name, self._options(request, body), dry=dry)
        gone = self.api.store.get(asked.resource.key, asked.namespace, asked.name) is None
        whole = asked.resource.key == "pods" or not gone
        return web.json_response(last if whole else success(asked.resource, asked.name, last["metadata"]["uid"]))

    def _delete_all(self, request: web.Request, asked: Asked, body: Any, *, dry: bool) -> web.Response:
        matches = selector(asked.resource.key, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
        options = self._options(request, body)
        found = [version for version in self.api.store.all(asked.resource.key, asked.namespace) if matches(version.body)]
        last = [self.api.delete(asked.resource, version.namespace, version.name, options, dry=dry) for version in found]
        metadata = {"resourceVersion": str(self.api.store.revision)}
        kind = f"{asked.resource.kind}List"
        return web.json_response({"kind": kind, "apiVersion": asked.resource.api_version, "metadata": metadata, "items": last})

    def hang_up_streams(self) -> None:
        """Cut every watch and every followed log at once."""
        for transport in list(self._streams):
            transport.abort()

    async def _watch(self, request: web.Request, asked: Asked, user: User) -> web.StreamResponse:
        matches = selector(asked.resource.key, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
        fields = request.query.get("fieldSelector", "")
        if asked.name:
            matches = selector(asked.resource.key, "", f"metadata.name={asked.name}" + (f",{fields}" if fields else ""))
        revision = revision_of(request, self.api)
        watcher = Watcher(asked.namespace, matches)
        self._begin(request, asked, watcher, revision)
        self.hub.join(asked.resource.key, watcher)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        lasts = number(request, "timeoutSeconds") or WATCH_LASTS
        cut = self.faults.hit("cut", asked, user)
        try:
            send = functools.partial(self._send, request, response, asked, watcher, lasts)
            await self.stream(request, response, send, cut.seconds if cut else None)
        finally:
            self.hub.leave(asked.resource.key, watcher)
        return response

    def _begin(self, request: web.Request, asked: Asked, watcher: Watcher, revision: int) -> None:
        """Give the watcher what it has to hear first: what there is already, or the history since its version."""
        store, key = self.api.store, asked.resource.key
        initial = flag(request, "sendInitialEvents")
        if not revision or initial:
            there: list[Version] = [one for one in store.all(key, asked.namespace) if watcher.matches(one.body)]
            watcher.lines.extend(event_line("ADDED", version.encoded()) for version in there)
            if initial and flag(request, "allowWatchBookmarks"):
                watcher.lines.append(bookmark(asked.resource, store.revision, initial=True))
            return
        missed = store.since(key, revision)
        if missed is None:
            watcher.lines.append(error_line(expired(revision, store.compacted).body()))
            return
        for change in missed:
            watcher.hear(change)

    async def _send(
        self, request: web.Request, response: web.StreamResponse, asked: Asked, watcher: Watcher, lasts: float
    ) -> None:
        ends, marks = time.monotonic() + lasts, flag(request, "allowWatchBookmarks")
        marked = time.monotonic()
        while True:
            watcher.awake.clear()
            while watcher.lines:
                lines = b"".join(watcher.lines)
                watcher.lines.clear()
                await response.write(lines)
                if lines.startswith(b'{"type":"ERROR"'):
                    return
            left = ends - time.monotonic()
            due = marked + self._bookmark_every - time.monotonic() if marks else left
            if left <= 0:
                if marks:
                    await response.write(bookmark(asked.resource, self.api.store.revision))
                return
            try:
                await asyncio.wait_for(watcher.awake.wait(), max(min(left, due), 0.001))
            except asyncio.TimeoutError:
                if marks and time.monotonic() >= marked + self._bookmark_every:
                    watcher.lines.append(bookmark(asked.resource, self.api.store.revision))
                    marked = time.monotonic()

    async def stream(
        self, request: web.Request, response: web.StreamResponse, send: Callable[[], Awaitable[None]], cut: float | None
    ) -> None:
        """Send a stream until it is over, the client has gone, or somebody cuts it (after `cut` seconds)."""
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return
        self._streams.add(transport)
        try:
            await asyncio.wait_for(send(), cut)
            await response.write_eof()
        except asyncio.TimeoutError:
            transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._streams.discard(transport)


def _raw(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _hang_up(request: web.Request) -> web.StreamResponse:
    if request.transport:
        request.transport.abort()
    return web.Response(status=500)
