"""Events about pods and nodes, counted where they repeat."""

from __future__ import annotations

import uuid

from tests.emulator.api import Api
from tests.emulator.bodies import Body, clone, stamp
from tests.emulator.errors import ApiError

__all__ = ["EventLog"]


class EventLog:
    """Writes events as the kubelet, the scheduler and the node controller do."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[tuple[str, str, str], tuple[str, str]] = {}

    def add(self, about: Body, kind: str, reason: str, message: str, source: str) -> None:
        metadata = about["metadata"]
        same = (metadata["uid"], reason, message)
        namespace = metadata.get("namespace") or "default"
        resource = self._api.kind("events")
        known = self._known.get(same)
        old = self._api.store.get("events", *known) if known else None
        try:
            if old:
                new = clone(old.body)
                new.update(count=new["count"] + 1, lastTimestamp=stamp())
                self._api.update(resource, old.body, new)
                return
            name = f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}"
            self._api.create(resource, namespace, _body(about, name, kind, reason, message, source))
            self._known[same] = (namespace, name)
        except ApiError:  # a namespace that ends takes no events
            return


def _body(about: Body, name: str, kind: str, reason: str, message: str, source: str) -> Body:
    metadata = about["metadata"]
    return {
        "metadata": {"name": name},
        "involvedObject": {
            "kind": about["kind"],
            "apiVersion": about["apiVersion"],
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": source.partition(",")[0], "host": source.partition(", ")[2]},
        "firstTimestamp": stamp(),
        "lastTimestamp": stamp(),
        "count": 1,
    }
