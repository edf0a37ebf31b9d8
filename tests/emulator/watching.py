"""Watches: which changes a watcher hears of, and as what."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass

from tests.emulator.bodies import Body
from tests.emulator.resources import Resource
from tests.emulator.selectors import Matcher
from tests.emulator.store import Change, Store, Version

__all__ = ["Hub", "Watcher", "bookmark", "error_line", "event_line"]


def event_line(kind: str, encoded: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + encoded + b"}\n"


def error_line(status: Body) -> bytes:
    return event_line("ERROR", json.dumps(status).encode())


def bookmark(resource: Resource, revision: int, *, initial: bool = False) -> bytes:
    """A sign that everything up to `revision` was sent; `initial` marks the end of the objects that there were already."""
    metadata: Body = {"resourceVersion": str(revision)}
    if initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    told = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return event_line("BOOKMARK", json.dumps(told).encode())


@dataclass(eq=False)
class Watcher:
    """One who watches: its selection, and what it has not been sent yet."""

    namespace: str
    matches: Matcher

    def __post_init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self.awake = asyncio.Event()

    def hear(self, change: Change) -> None:
        """Note a change as this watcher sees it: what leaves its selection is deleted for it, as it was before."""
        if self.namespace and change.now.namespace != self.namespace:
            return
        line = self._line(change)
        if line:
            self.lines.append(line)
            self.awake.set()

    def _line(self, change: Change) -> bytes:
        was = change.before is not None and self.matches(change.before.body)
        if change.type == "DELETED":
            return event_line("DELETED", change.now.encoded()) if was else b""
        if self.matches(change.now.body):
            return event_line("MODIFIED" if was else "ADDED", change.now.encoded())
        if was and change.before:
            return event_line("DELETED", _renumbered(change.before, change.revision))
        return b""


def _renumbered(version: Version, revision: int) -> bytes:
    metadata = {**version.body["metadata"], "resourceVersion": str(revision)}
    return json.dumps({**version.body, "metadata": metadata}, separators=(",", ":")).encode()


class Hub:
    """All watchers of a store, told of every change as it happens."""

    def __init__(self, store: Store) -> None:
        self._watchers: dict[str, set[Watcher]] = {}
        store.listeners.append(self._noted)

    def join(self, key: str, watcher: Watcher) -> None:
        self._watchers.setdefault(key, set()).add(watcher)

    def leave(self, key: str, watcher: Watcher) -> None:
        self._watchers.get(key, set()).discard(watcher)

    def counts(self) -> dict[str, int]:
        return {key: len(watchers) for key, watchers in self._watchers.items() if watchers}

    def _noted(self, change: Change) -> None:
        for watcher in self._watchers.get(change.now.key, ()):
            watcher.hear(change)
