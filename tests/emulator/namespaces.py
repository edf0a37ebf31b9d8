"""Namespaces: each has its default service account; one that is deleted goes when everything in it has gone."""

from __future__ import annotations

from tests.emulator.api import Api
from tests.emulator.errors import ApiError
from tests.emulator.store import Change

__all__ = ["NamespaceController"]


class NamespaceController:
    """Looks at namespaces when they, or the last things in them, change."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._new: list[str] = []
        self._ending: set[str] = set()
        api.store.listeners.append(self._noted)

    def pending(self) -> bool:
        return bool(self._new or self._ending)

    def sweep(self) -> None:
        """Give new namespaces what they need, and take from ending ones what they still have."""
        new, self._new = self._new, []
        for name in new:
            account = {"metadata": {"name": "default"}}
            self._api.quietly(
                [lambda name=name, account=account: self._api.create(self._api.kind("serviceaccounts"), name, account)]
            )
        for name in list(self._ending):
            self._empty(name)

    def _noted(self, change: Change) -> None:
        if change.now.key != "namespaces":
            return
        if change.type == "ADDED":
            self._new.append(change.now.name)
        elif change.type == "DELETED":
            self._ending.discard(change.now.name)
        elif "deletionTimestamp" in change.now.body["metadata"]:
            self._ending.add(change.now.name)

    def _empty(self, name: str) -> None:
        left = [version for version in self._api.store.everything() if version.namespace == name]
        for version in left:
            if "deletionTimestamp" not in version.body["metadata"]:
                try:
                    self._api.delete(self._api.kind(version.key), name, version.name, {})
                except ApiError:  # it went by itself
                    continue
        home = self._api.store.get("namespaces", "", name)
        if not left and home:
            self._api.store.remove("namespaces", "", name)
