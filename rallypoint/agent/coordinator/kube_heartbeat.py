"""The supervisor's heartbeat where it is a Lease of Kubernetes, and the supervisor itself where it comes by."""

from __future__ import annotations

import json
import logging
from typing import Any

from rallypoint.agent.coordinator.kube import ApiError, KubeApi, config_map_path, lease_path
from rallypoint.agent.coordinator.namespaced import Namespaced

__all__ = ["RECORD_KEY", "LeaseHeartbeat", "SignsOfLife"]

log = logging.getLogger("rallypoint.orphan")

#: Key of the record in the job's ConfigMap.
RECORD_KEY = "record.json"


class LeaseHeartbeat:
    """A record in a ConfigMap whose holder names a Lease that is renewed all the time; a `HeartbeatSource`.

    Each look is one request, in turn for the record and for the Lease: thousands of jobs must not be a load for the API server.
    """

    def __init__(self, api: KubeApi, record: Namespaced) -> None:
        self._api, self._record = api, record
        self._lease: Namespaced | None = None
        self._beat: str | None = None
        self._refused = self._record_next = False

    async def read(self) -> str | None:
        """Return the last beat that is known; what cannot be read is no sign of life."""
        self._record_next = not self._record_next or self._lease is None
        try:
            if self._record_next:
                await self._look_for_holder()
            elif self._lease is not None:
                await self._look_at_lease(self._lease)
        except ApiError as error:
            log.log(
                logging.WARNING if error.refused and not self._refused else logging.DEBUG,
                "the coordinator cannot read the heartbeat of the supervisor: %s",
                error,
            )
            self._refused = error.refused
            return None
        self._refused = False
        return self._beat

    async def _look_for_holder(self) -> None:
        found = await self._api.get(config_map_path(self._record))
        lease = _lease_of((found.get("data") or {}).get(RECORD_KEY), self._record.namespace)
        if lease != self._lease:
            self._lease = lease
            # Somebody has just written himself into the record.
            self._beat = None if lease is None else f"{lease}"

    async def _look_at_lease(self, lease: Namespaced) -> None:
        try:
            found = await self._api.get(lease_path(lease))
        except ApiError as error:
            if error.status != 404:
                raise
            self._beat = None
            return
        metadata, spec = found.get("metadata") or {}, found.get("spec") or {}
        self._beat = f"{lease} {metadata.get('uid')} {metadata.get('resourceVersion')} {spec.get('renewTime')}"


def _lease_of(text: Any, namespace: str) -> Namespaced | None:
    """Return the Lease that a record's holder names, None where it names none."""
    try:
        holder = json.loads(text)["holder"]
        return Namespaced.parse(holder["heartbeat"], namespace=namespace)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class SignsOfLife:
    """A heartbeat that is read, and supervisors that come by: either is a sign of life; a `HeartbeatSource`."""

    def __init__(self, heartbeat: LeaseHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._seen = ""

    def seen(self, mark: str) -> None:
        """Note what a supervisor said of itself."""
        self._seen = mark

    async def read(self) -> str | None:
        """Return something that is another thing after each sign of either."""
        beat = await self._heartbeat.read()
        return f"{beat or ''} {self._seen}".strip() or None
