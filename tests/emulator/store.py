"""Objects with their versions, and the history of changes: what etcd and the watch cache are to a real server."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.emulator.bodies import Body

__all__ = ["Change", "Store", "Version"]

#: The first version ever given out. What is older was "compacted" before the server started, as in a cluster with a past.
FIRST = 1000

#: So many changes of each kind of object are remembered.
HISTORY = 50_000


@dataclass(eq=False)
class Version:
    """An object as it was at one moment. Its body is never changed, so its JSON is made once for all who ask."""

    key: str
    namespace: str
    name: str
    body: Body
    revision: int
    _encoded: bytes | None = field(default=None, repr=False)

    def encoded(self) -> bytes:
        if self._encoded is None:
            self._encoded = json.dumps(self.body, separators=(",", ":")).encode()
        return self._encoded


@dataclass(frozen=True, kw_only=True, eq=False)
class Change:
    """One step of the history: how an object was and how it is. After a deletion `now` is how it was last, at a new version."""

    type: str
    revision: int
    before: Version | None
    now: Version


class Store:
    """All objects, by kind, namespace and name. One revision counts the changes of all of them."""

    def __init__(self, history: int = HISTORY) -> None:
        self.revision = FIRST
        self.compacted = FIRST
        self.listeners: list[Callable[[Change], None]] = []
        self._history = history
        self._objects: dict[str, dict[tuple[str, str], Version]] = {}
        self._changes: dict[str, deque[Change]] = {}

    def get(self, key: str, namespace: str, name: str) -> Version | None:
        return self._objects.get(key, {}).get((namespace, name))

    def all(self, key: str, namespace: str = "") -> list[Version]:
        """The objects of a kind in one namespace, or in all where none is given, by namespace and name."""
        found = self._objects.get(key, {})
        return [found[place] for place in sorted(found) if not namespace or place[0] == namespace]

    def count(self, key: str, namespace: str = "") -> int:
        return sum(1 for place in self._objects.get(key, {}) if not namespace or place[0] == namespace)

    def everything(self) -> Iterator[Version]:
        for found in list(self._objects.values()):
            yield from list(found.values())

    def put(self, key: str, namespace: str, name: str, body: Body) -> Version:
        """Keep `body`, which belongs to the store from now on, under a new resourceVersion."""
        objects = self._objects.setdefault(key, {})
        before = objects.get((namespace, name))
        self.revision += 1
        body["metadata"]["resourceVersion"] = str(self.revision)
        body = {"kind": body["kind"], "apiVersion": body["apiVersion"], **body}  # in this order: lists cut the two off
        now = Version(key, namespace, name, body, self.revision)
        objects[namespace, name] = now
        self._record(Change(type="MODIFIED" if before else "ADDED", revision=self.revision, before=before, now=now))
        return now

    def remove(self, key: str, namespace: str, name: str, body: Body | None = None) -> Version:
        """Take an object away; `body` is how it was last where that is not what the store has. It belongs to the store."""
        before = self._objects[key].pop((namespace, name))
        self.revision += 1
        last = dict(before.body if body is None else body)
        last["metadata"] = {**last["metadata"], "resourceVersion": str(self.revision)}
        now = Version(key, namespace, name, last, self.revision)
        self._record(Change(type="DELETED", revision=self.revision, before=before, now=now))
        return now

    def since(self, key: str, revision: int) -> list[Change] | None:
        """The changes of a kind after `revision`, the oldest first; None where they are no longer known."""
        changes = self._changes.get(key, deque())
        if revision < self.compacted or (len(changes) == self._history and changes[0].revision > revision + 1):
            return None
        later = []
        for change in reversed(changes):
            if change.revision <= revision:
                break
            later.append(change)
        return later[::-1]

    def compact(self) -> None:
        """Forget all history: whoever resumes from an older version is told that it is gone."""
        self.compacted = self.revision
        self._changes.clear()

    def _record(self, change: Change) -> None:
        self._changes.setdefault(change.now.key, deque(maxlen=self._history)).append(change)
        for listener in list(self.listeners):
            listener(change)
