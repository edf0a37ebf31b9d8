"""An API server in a few lines, for what a whole one cannot be made to do at will: it breaks off, forgets, refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rallypoint.backends.kubernetes.errors import UnreachableError, refusal

__all__ = ["FakeApi"]


class FakeApi:
    """One collection and its history; `script` says how each stream goes."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.version = 10
        self.oldest = 0
        self.asked: list[tuple[str, str]] = []
        self.down = False
        self._news = asyncio.Event()
        self._cuts: asyncio.Event = asyncio.Event()

    def put(self, name: str, **fields: Any) -> None:
        """Create or change an object."""
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self._happen(kind, {"metadata": {"name": name, "uid": f"uid-{name}"}, **fields})

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._happen("DELETED", dict(self.objects[name]))

    def _happen(self, kind: str, found: dict[str, Any]) -> None:
        self.version += 1
        name = found["metadata"]["name"]
        found["metadata"] = {**found["metadata"], "resourceVersion": str(self.version)}
        if kind == "DELETED":
            del self.objects[name]
        else:
            self.objects[name] = found
        self.history.append((self.version, kind, found))
        self._wake()

    def compact(self) -> None:
        """Forget the history; who goes on from it is told that it is gone."""
        self.oldest = self.version
        self.cut()

    def cut(self) -> None:
        """Break off every stream."""
        self._cuts.set()
        self._cuts = asyncio.Event()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None, **_: Any
    ) -> bytes:
        self.asked.append((method, path))
        if self.down:
            raise UnreachableError("down")
        assert (method, body) == ("GET", None)
        limit = int((query or {}).get("limit", "1000"))
        names = sorted(self.objects)
        begin = int((query or {}).get("continue", "0"))
        page = [self.objects[name] for name in names[begin : begin + limit]]
        more = {"continue": str(begin + limit)} if begin + limit < len(names) else {}
        return json.dumps({"items": page, "metadata": {"resourceVersion": str(self.version), **more}}).encode()

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str] | None = None, silence: float = 0.0
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append(("WATCH", path))
        if self.down:
            raise UnreachableError("down")
        since = int((query or {})["resourceVersion"])
        if since < self.oldest:
            raise refusal(path, 410, json.dumps({"reason": "Expired", "message": "too old", "code": 410}).encode())
        yield self._lines(since, self._cuts)

    async def _lines(self, since: int, cut: asyncio.Event) -> AsyncIterator[bytes]:
        while True:
            news = self._news
            for version, kind, found in list(self.history):
                if version > since:
                    since = version
                    yield json.dumps({"type": kind, "object": found}).encode() + b"\n"
            if cut.is_set():
                yield b'{"type":"MODIFIED","object":{"meta'  # in the middle of a line
                return
            waits = [asyncio.ensure_future(event.wait()) for event in (news, cut)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def time(self) -> float:
        self.asked.append(("GET", "/version"))
        return 0.0

    async def close(self) -> None:
        pass
