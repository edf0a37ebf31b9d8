"""The job's status in a ConfigMap, and what a coordinator does that may not write there."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from rallypoint.agent.coordinator.kube import ApiError, KubeApi, config_map_path
from rallypoint.agent.coordinator.namespaced import Namespaced
from rallypoint.agent.coordinator.sink import FileSink, refuse_later
from rallypoint.agent.errors import ConfigError
from rallypoint.wire import codec
from rallypoint.wire.status import STATUS_WRITTEN, JobStatus

__all__ = ["NO_ROUTE", "STATUS_KEY", "ConfigMapSink", "PodSink"]

log = logging.getLogger("rallypoint.configmap")

#: Key of the status in its ConfigMap.
STATUS_KEY = "status.json"

#: How often one publication is tried again because somebody else changed the ConfigMap meanwhile.
_CONFLICTS = 5

#: Seconds after which a coordinator tries again whether it may write by now.
_ASK_AGAIN = 60.0

#: Seconds after which an API server that has never answered this pod counts as one to which there is no route.
NO_ROUTE = 15.0

#: Seconds for which it leaves a busy API server alone at the most.
_LONGEST_PAUSE = 10.0


class ConfigMapSink:
    """One ConfigMap, changed only in the version that was seen: who was replaced cannot overwrite what the later one wrote."""

    def __init__(self, api: KubeApi, place: Namespaced) -> None:
        self._api, self._place = api, place
        self._version = ""

    async def read(self) -> JobStatus | None:
        """Return what is there, None for nothing yet; raises `ApiError`.

        Raises `ConfigError` for the status of a version that is not understood: it must not be overwritten. One that makes no
        sense at all counts as none.
        """
        found = await self._api.get(config_map_path(self._place))
        self._version = _version(found)
        text = (found.get("data") or {}).get(STATUS_KEY)
        if not text:
            return None
        try:
            return codec.loads(JobStatus, text)
        except codec.VersionError as error:
            raise ConfigError(f"ConfigMap {self._place}: {STATUS_KEY}: {error}") from error
        except codec.WireError as error:
            log.warning(
                "the coordinator cannot read the last job status in key %s of ConfigMap %s (%s); it starts without this status",
                STATUS_KEY,
                self._place,
                error,
            )
            return None

    async def publish(self, status: JobStatus) -> None:
        """Return when it is written; raises `StaleError` as any sink does, and `ApiError`."""
        text = codec.dumps(status)
        for _ in range(_CONFLICTS):
            if not self._version:
                refuse_later(await self.read(), status, f"ConfigMap {self._place}")
            metadata = {"resourceVersion": self._version, "annotations": {STATUS_WRITTEN: self._api.server_time}}
            change = {"metadata": metadata, "data": {STATUS_KEY: text}}
            try:
                self._version = _version(await self._api.merge_patch(config_map_path(self._place), change))
            except ApiError as error:
                self._version = ""  # also where nobody knows whether it was written
                if error.status != 409:
                    raise
            else:
                return
        raise ApiError(f"ConfigMap {self._place}: update conflict; another client keeps changing this ConfigMap", status=409)


def _version(found: dict[str, Any]) -> str:
    return str((found.get("metadata") or {}).get("resourceVersion") or "")


class PodSink:
    """A ConfigMap, or a file in the pod as long as the ConfigMap cannot be written from there; a `StatusSink`.

    That is so where it may not, and where the API server has never answered this pod: a pod without a route to it would wait
    for ever. A server that has answered and is away is waited for.

    `trouble` says so. What is in the file no other coordinator can read: whoever supervises must not start a second one before
    the first is known to be dead.
    """

    def __init__(self, remote: ConfigMapSink, local: FileSink, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._remote, self._local, self._clock = remote, local, clock
        self._began = self._ask_at = clock()
        self._reached = False
        self.trouble = ""

    async def publish(self, status: JobStatus) -> None:
        """See `StatusSink`."""
        if self._clock() >= self._ask_at and await self._publish_remotely(status):
            return
        await self._local.publish(dataclasses.replace(status, durable=False))

    async def _publish_remotely(self, status: JobStatus) -> bool:
        """Return whether it was written, False where we may not; raises `OSError` where it does not work now."""
        try:
            await self._remote.publish(dataclasses.replace(status, durable=True))
        except ApiError as error:
            self._reached = self._reached or bool(error.status)
            no_route = not self._reached and self._clock() >= self._began + NO_ROUTE
            if not (error.refused or no_route):
                await asyncio.sleep(min(error.retry_after, _LONGEST_PAUSE))
                raise OSError(str(error)) from error
            if not self.trouble:
                log.warning(
                    "the coordinator cannot write the job status to the ConfigMap of the job (%s); it writes the status to a "
                    "folder of its pod instead",
                    error,
                )
            why = "no permission to write" if error.refused else "the API server has never answered this pod; cannot write"
            self.trouble = f"{why} the status ConfigMap ({error})"
            self._ask_at = self._clock() + _ASK_AGAIN
            return False
        self._reached = True
        self.trouble = ""
        return True
