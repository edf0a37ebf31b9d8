"""A node: its object in the API, the pods that are bound to it, and whether anybody can reach it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import shutil
from pathlib import Path

from tests.emulator.access import Access
from tests.emulator.api import Api
from tests.emulator.bodies import Body, clone, stamp
from tests.emulator.errors import ApiError
from tests.emulator.kubelet.addresses import Addresses
from tests.emulator.kubelet.events import EventLog
from tests.emulator.kubelet.images import Images
from tests.emulator.kubelet.pod import FORCED, PodRun
from tests.emulator.kubelet.volumes import Volumes
from tests.emulator.options import NodeOptions, Options

__all__ = ["Node", "node_body"]

ENDED = ("Succeeded", "Failed")

#: Namespace of the Leases of all nodes.
LEASES = "kube-node-lease"


def node_body(options: NodeOptions, address: str) -> Body:
    """The object of a healthy node."""
    size = {"cpu": options.cpu, "memory": options.memory, "pods": str(options.pods), "ephemeral-storage": "1Ti"}
    if options.gpus:
        size["nvidia.com/gpu"] = str(options.gpus)
    names = {"kubernetes.io/hostname": options.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "metadata": {"name": options.name, "labels": {**names, **options.labels}},
        "spec": {"taints": [dict(taint) for taint in options.taints]} if options.taints else {},
        "status": {
            "capacity": size,
            "allocatable": dict(size),
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": options.name}],
            "conditions": ready_conditions("True", "KubeletReady", "kubelet is posting ready status"),
            "nodeInfo": {"kubeletVersion": "v1.36.0-emulator", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def ready_conditions(status: str, reason: str, message: str) -> list[Body]:
    moment = {"lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
    return [{"type": "Ready", "status": status, "reason": reason, "message": message, **moment}]


class Node:
    """The kubelet of one node: while it is connected it does what the API says of its pods, and says what became of them."""

    def __init__(
        self,
        name: str,
        api: Api,
        access: Access,
        options: Options,
        folder: Path,
        addresses: Addresses,
        images: Images,
        events: EventLog,
    ) -> None:
        self.name, self.api, self.store, self.images = name, api, api.store, images
        self.speed, self.routing, self.image_env, self.url = options.speed, options.routing, dict(options.image_env), ""
        self._image_files = dict(options.image_files)
        self.address = addresses.take()
        self.connected = True
        self.silent = False
        self.powered = asyncio.Event()
        self.powered.set()
        self.runs: dict[str, PodRun] = {}
        self._access, self._folder, self._addresses, self._events = access, folder, addresses, events
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # ----------------------------------------------------------------------------------------------------- for its pods

    def volumes(self, pod: Body, folder: Path) -> Volumes:
        return Volumes(
            pod=pod,
            store=self.store,
            access=self._access,
            folder=folder,
            shared=self._folder / "claims",
            image=self._image_files,
        )

    def tell(self, pod: Body, kind: str, reason: str, message: str) -> None:
        if self.connected:
            self._events.add(pod, kind, reason, message, f"kubelet, {self.name}")

    def report(self, run: PodRun) -> None:
        """Write the status of a pod, if anybody hears this node and the pod is still there."""
        metadata = run.pod["metadata"]
        found = self.store.get("pods", metadata["namespace"], metadata["name"])
        if not self.connected or found is None or found.body["metadata"]["uid"] != metadata["uid"]:
            return
        run.pod = found.body
        new = clone(found.body)
        new["status"] = run.status()
        self.api.update(self.api.kind("pods"), found.body, new, subresource="status")

    def finished(self, run: PodRun) -> None:
        self.report(run)
        self._settle(run.pod["metadata"]["uid"])

    # ---------------------------------------------------------------------------------------------- for the API server

    def renew(self) -> None:
        """Renew the Lease of this node, if anybody hears it; its time has microseconds, as a real kubelet's."""
        if not self.connected:
            return
        leases = self.api.kind("leases.coordination.k8s.io")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": _now()}
        found = self.store.get(leases.key, LEASES, self.name)
        if found is None:
            self.api.create(leases, LEASES, {"metadata": {"name": self.name}, "spec": spec})
        else:
            self.api.update(leases, found.body, {**clone(found.body), "spec": spec})

    def sync(self, uid: str, body: Body | None) -> None:
        """Make true what the API says of a pod; None where it has none with this uid any more."""
        if not self.connected:
            return
        run = self.runs.get(uid)
        if body is None:
            if run:
                run.stop(FORCED)
                self._settle(uid)
            return
        grace = body["metadata"].get("deletionGracePeriodSeconds")
        if run is None and body["status"].get("phase") not in ENDED and grace is None:
            run = self._begin(body)
        if run:
            run.changed(body)
        if grace is None:
            return
        if run:
            run.stop(grace)
        self._settle(uid, body)

    def _begin(self, body: Body) -> PodRun:
        uid = body["metadata"]["uid"]
        host_network = body["spec"].get("hostNetwork")
        run = PodRun(self, body, self._folder / "pods" / uid, self.address if host_network else self._addresses.take())
        self.runs[uid] = run
        run.folder.mkdir(parents=True, exist_ok=True)
        self._tasks[uid] = asyncio.create_task(run.run())
        self._tasks[uid].add_done_callback(_complain)
        return run

    def _settle(self, uid: str, body: Body | None = None) -> None:
        """Confirm the deletion of a pod of which nothing is left, and forget one that is gone."""
        run = self.runs.get(uid)
        if run and not run.over_for_good:
            return
        known = body or (run.pod if run else None)
        if known is None or not self.connected:
            return
        metadata = known["metadata"]
        found = self.store.get("pods", metadata["namespace"], metadata["name"])
        if found and found.body["metadata"]["uid"] == uid:
            if "deletionTimestamp" in found.body["metadata"]:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                self.api.quietly([lambda: self.api.delete(self.api.kind("pods"), found.namespace, found.name, options)])
            return
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        run = self.runs.pop(uid, None)
        self._tasks.pop(uid, None)
        if run:
            shutil.rmtree(run.folder, ignore_errors=True)

    # ----------------------------------------------------------------------------------------------------- what happens to it

    async def lose(self, *, power: bool, silent: bool = False) -> None:
        """Nobody hears it any more; with `power` the machine is off, else its processes go on.

        Its processes are killed, so that their connections end; with `silent` no peer is told, as where the power fails.
        """
        self.connected = False
        self.silent = silent and power
        if self.silent:
            self.powered.clear()
            await asyncio.gather(*(run.freeze() for run in list(self.runs.values())))
        elif power:
            self.powered.clear()
            await asyncio.gather(*(run.kill() for run in list(self.runs.values())))

    async def boot(self) -> None:
        """End what stood still since the power failed: nothing outlives that."""
        if self.silent:
            await asyncio.gather(*(run.kill() for run in list(self.runs.values())))
            self.silent = False

    def back(self) -> None:
        """It is heard again: what was missed is made up for, and what became of its pods is told."""
        self.connected = True
        self.powered.set()
        for uid, run in list(self.runs.items()):
            metadata = run.pod["metadata"]
            found = self.store.get("pods", metadata["namespace"], metadata["name"])
            same = found is not None and found.body["metadata"]["uid"] == uid
            with contextlib.suppress(ApiError):
                self.report(run)
            self.sync(uid, found.body if same and found else None)
        for version in self.store.all("pods"):
            if version.body["spec"].get("nodeName") == self.name:
                self.sync(version.body["metadata"]["uid"], version.body)

    async def close(self) -> None:
        self.connected = False
        self.powered.set()
        for run in self.runs.values():
            run.stop(0.0)
        if tasks := list(self._tasks.values()):
            _, late = await asyncio.wait(tasks, timeout=10.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _complain(task: asyncio.Task[None]) -> None:
    """A bug of the emulator must not look like a pod that hangs."""
    if not task.cancelled() and (error := task.exception()):
        os.write(2, f"emulator: a pod's life ended with {error!r}\n".encode())
        asyncio.get_running_loop().call_exception_handler({"message": "a pod's life failed", "exception": error})
