"""The garbage collector: what becomes of objects whose owners are gone, or go in the foreground."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tests.emulator.api import Api
from tests.emulator.bodies import Body, clone, finalizers, owners
from tests.emulator.deletion import FOREGROUND, ORPHAN
from tests.emulator.errors import ApiError
from tests.emulator.store import Change, Version

__all__ = ["GarbageCollector"]

Place = tuple[str, str, str]


class GarbageCollector:
    """Remembers who owns what, and what it has to look at; `sweep` does the work, some time after the changes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._owned: dict[str, set[Place]] = defaultdict(set)  # uid of an owner -> places of what it owns
        self._uids: set[str] = set()
        self._pending: dict[Place, None] = {}
        api.store.listeners.append(self._noted)

    def pending(self) -> bool:
        return bool(self._pending)

    def sweep(self) -> None:
        """Look at everything that may have to go or to be let go."""
        looked, self._pending = list(self._pending), {}
        for key, namespace, name in looked:
            found = self._api.store.get(key, namespace, name)
            if found is None or key not in self._api.kinds:
                continue
            try:
                self._look_at(found)
            except ApiError as error:  # somebody was quicker: the change that beat us is looked at in its turn
                if error.code not in {404, 409}:
                    raise

    def _noted(self, change: Change) -> None:
        place: Place = (change.now.key, change.now.namespace, change.now.name)
        uid = change.now.body["metadata"]["uid"]
        for owner in owners(change.before.body) if change.before else []:
            self._owned[owner["uid"]].discard(place)
        if change.type == "DELETED":
            self._uids.discard(uid)
            self._pending.update(dict.fromkeys(self._owned.get(uid, ())))
            self._note_owners(change.now.body)
            if change.now.namespace:
                self._note_terminating(change.now.namespace)
            return
        self._uids.add(uid)
        for owner in owners(change.now.body):
            self._owned[owner["uid"]].add(place)
            if owner["uid"] not in self._uids:
                self._pending[place] = None
        if "deletionTimestamp" in change.now.body["metadata"]:
            self._pending[place] = None

    def _note_owners(self, body: Body) -> None:
        """An owner that goes in the foreground waits for this one."""
        for owner in owners(body):
            for key, resource in self._api.kinds.items():
                if resource.kind == owner["kind"]:
                    namespace = body["metadata"].get("namespace", "") if resource.namespaced else ""
                    self._pending[key, namespace, owner["name"]] = None

    def _note_terminating(self, namespace: str) -> None:
        home = self._api.store.get("namespaces", "", namespace)
        if home and "deletionTimestamp" in home.body["metadata"]:
            self._pending["namespaces", "", namespace] = None

    def _look_at(self, version: Version) -> None:
        body = version.body
        if "deletionTimestamp" in body["metadata"]:
            if ORPHAN in finalizers(body):
                self._orphan(version)
            elif FOREGROUND in finalizers(body):
                self._foreground(version)
        elif owners(body):
            self._dependent(version)

    def _dependent(self, version: Version) -> None:
        alive = [owner for owner in owners(version.body) if owner["uid"] in self._uids]
        if not alive:
            self._delete(version)
        elif len(alive) < len(owners(version.body)):
            self._change(version, "ownerReferences", alive)

    def _orphan(self, version: Version) -> None:
        uid = version.body["metadata"]["uid"]
        for place in list(self._owned.get(uid, ())):
            if found := self._api.store.get(*place):
                self._change(found, "ownerReferences", [owner for owner in owners(found.body) if owner["uid"] != uid])
        self._change(version, "finalizers", [one for one in finalizers(version.body) if one != ORPHAN])

    def _foreground(self, version: Version) -> None:
        uid = version.body["metadata"]["uid"]
        waits = False
        for place in list(self._owned.get(uid, ())):
            found = self._api.store.get(*place)
            if found is None:
                continue
            blocks = any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners(found.body))
            if "deletionTimestamp" not in found.body["metadata"]:
                self._delete(found)
            waits = waits or (blocks and self._api.store.get(*place) is not None)
        if not waits:
            self._change(version, "finalizers", [one for one in finalizers(version.body) if one != FOREGROUND])

    def _delete(self, version: Version) -> None:
        options = {"propagationPolicy": "Background", "preconditions": {"uid": version.body["metadata"]["uid"]}}
        self._api.delete(self._api.kind(version.key), version.namespace, version.name, options)

    def _change(self, version: Version, field: str, value: Sequence[object]) -> None:
        new = clone(version.body)
        new["metadata"].pop(field, None)
        if value:
            new["metadata"][field] = list(value)
        self._api.update(self._api.kind(version.key), version.body, new)
