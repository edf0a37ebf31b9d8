"""The training operator's part for PyTorchJobs: looks through the API, asks the rules, and does what they say."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable

from tests.emulator.controllers.api import Api, ApiError, Kind, Object
from tests.emulator.controllers.loop import Controller, Key, key_of
from tests.emulator.controllers.pytorchjob_rules import JOB_NAME, Address, PortError, labels_of, next_status, wanted

__all__ = ["JOBS", "PyTorchJobController"]

log = logging.getLogger(__name__)

JOBS = Kind("kubeflow.org/v1", "pytorchjobs")
PODS = Kind("v1", "pods")
SERVICES = Kind("v1", "services")

#: Ports of masters where all pods share one machine: each job has another.
_FIRST_PORT, _PORTS = 20000, 9000

#: Seconds until a job that could not be reconciled is looked at again.
_RETRY = 1.0


class PyTorchJobController(Controller):
    """Runs the PyTorchJobs of a cluster.

    `host`: where pods are told that their master is, for a cluster that resolves no names and whose pods share one machine;
    then each job also has a port of its own.
    """

    def __init__(self, api: Api, *, host: str = "") -> None:
        super().__init__(api)
        self._host = host

    async def follow(self, group: Callable[[Kind, Callable[[str, Object], None]], None]) -> None:
        group(JOBS, lambda _event, found: self.agenda.add(key_of(found)))
        group(PODS, self._pod)

    def _pod(self, event: str, pod: Object) -> None:
        name = pod["metadata"].get("labels", {}).get(JOB_NAME)
        if name:
            self.agenda.add((key_of(pod)[0], name))

    def _address(self, job: Object) -> Address:
        if not self._host:
            return Address()
        return Address(host=self._host, port=_FIRST_PORT + zlib.crc32(job["metadata"]["uid"].encode()) % _PORTS)

    async def reconcile(self, key: Key) -> float | None:
        job = await self.api.get(JOBS, *key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            return None
        pods = await self._pods(job)
        status = next_status(job, pods, time.time())
        if status != job.get("status", {}):
            body = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}, "status": status}
            job = await self.api.patch(JOBS, *key, body, part="status")
        try:
            found = wanted(job, pods, self._address(job))
        except PortError as error:
            # The operator logs it and tries again: nothing of the object says why there are no pods.
            log.info("PyTorchJob %s/%s: %s", *key, error)
            return _RETRY
        for pod in found.deleted:
            await self.api.delete(PODS, pod)
        for service in found.services:
            await self._create(SERVICES, service)
        for pod in found.pods:
            await self._create(PODS, pod)
        return None

    async def _pods(self, job: Object) -> list[Object]:
        """Return the pods of this very job: one that is being deleted may have had the same name."""
        selector = ",".join(f"{name}={value}" for name, value in labels_of(job).items())
        pods, _version = await self.api.list(PODS, job["metadata"]["namespace"], selector)
        uid = job["metadata"]["uid"]
        return [pod for pod in pods if any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences", []))]

    async def _create(self, kind: Kind, wanted: Object) -> None:
        try:
            await self.api.create(kind, wanted["metadata"]["namespace"], wanted)
        except ApiError as error:
            # One of an earlier job of this name may still be going; its end is told and looked at again.
            if error.reason != "AlreadyExists":
                raise
