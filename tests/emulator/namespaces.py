"""Namespaces: each has its default service account; one that is deleted goes when everything in it has gone."""

from __future__ import annotations

from tests.emulator.api import Api
from tests.emulator.errors import ApiError
from tests.emulator.store import Change

__all__ = ["NamespaceController"]


class NamespaceController:
    """Looks at namespaces when they, or the last things in them, change.

    The default account is there at once: a real cluster takes a moment, in which pods are refused.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ending: set[str] = set()
        api.store.listeners.append(self._noted)

    def pending(self) -> bool:
        return bool(self._ending)

    def sweep(self) -> None:
        """Take from ending namespaces what they still have."""
        for name in list(self._ending):
            self._empty(name)

    def _noted(self, change: Change) -> None:
        if change.now.key != "namespaces":
            return
        if change.type == "ADDED":
            account = {"metadata": {"name": "default"}}
            self._api.create(self._api.kind("serviceaccounts"), change.now.name, account)
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
