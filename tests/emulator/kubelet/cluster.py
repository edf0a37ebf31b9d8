"""All nodes, the scheduler that binds pods to them, and the troubles that a test can bring upon them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.emulator.access import Access
from tests.emulator.api import Api
from tests.emulator.bodies import Body, clone
from tests.emulator.errors import ApiError
from tests.emulator.kubelet.addresses import Addresses
from tests.emulator.kubelet.events import EventLog
from tests.emulator.kubelet.images import Images
from tests.emulator.kubelet.lifecycle import Lifecycle
from tests.emulator.kubelet.node import Node, node_body
from tests.emulator.kubelet.pod import PodRun
from tests.emulator.kubelet.scheduler import place
from tests.emulator.kubelet.status import conditioned
from tests.emulator.options import NodeOptions, Options
from tests.emulator.store import Change, Version

__all__ = ["Cluster"]

ENDED = ("Succeeded", "Failed")

#: Seconds of a real cluster between two looks at the nodes.
LOOK_EVERY = 5.0

#: Seconds of a real cluster between two renewals of a node's Lease by its kubelet.
RENEW_EVERY = 10.0


class Cluster:
    """Without nodes it does nothing: pods are then what the caller says they are."""

    def __init__(self, api: Api, access: Access, options: Options, folder: Path) -> None:
        self.api, self.options = api, options
        self.nodes: dict[str, Node] = {}
        self.images = Images()
        self.events = EventLog(api)
        self.lifecycle = Lifecycle(api, self.events, options.speed)
        self._access, self._folder = access, folder
        self._addresses = Addresses()
        self._changed: dict[str, Version | None] = {}
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._url = ""

    @property
    def active(self) -> bool:
        return bool(self.options.nodes)

    async def start(self, url: str) -> None:
        self._url = url
        if not self.active:
            return
        self.api.store.listeners.append(self._noted)
        for options in self.options.nodes:
            self.add_node(options)
        self._tasks = [asyncio.create_task(loop()) for loop in (self._work_loop, self._look_loop, self._renew_loop)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self.nodes.values()))
        self._addresses.close()

    def add_node(self, options: NodeOptions) -> None:
        node = Node(options.name, self.api, self._access, self.options, self._folder, self._addresses, self.images, self.events)
        node.url = self._url
        self.nodes[options.name] = node
        self.api.create(self.api.kind("nodes"), "", node_body(options, node.address))

    def run_of(self, pod: Body) -> PodRun | None:
        """The pod on its node, dead or alive; None where no kubelet of ours has it."""
        node = self.nodes.get(pod["spec"].get("nodeName") or "")
        return node.runs.get(pod["metadata"]["uid"]) if node else None

    # ----------------------------------------------------------------------------------------------------------- at work

    def _noted(self, change: Change) -> None:
        """Only note it: who acts on a change within it would be heard before it."""
        if change.now.key == "pods":
            self._changed[change.now.body["metadata"]["uid"]] = None if change.type == "DELETED" else change.now
            self._work.set()
        elif change.now.key in {"nodes", "persistentvolumeclaims"}:
            if change.type == "DELETED" and change.now.key == "nodes":
                self.lifecycle.deleted(change.now.name)
            self._work.set()

    async def _work_loop(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            changed, self._changed = self._changed, {}
            for uid, version in changed.items():
                self._tell_nodes(uid, version)
            self._schedule()

    async def _look_loop(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY / self.options.speed)
            self.lifecycle.look()

    async def _renew_loop(self) -> None:
        while True:
            self.api.quietly([node.renew for node in self.nodes.values()])
            await asyncio.sleep(RENEW_EVERY / self.options.speed)

    def _tell_nodes(self, uid: str, version: Version | None) -> None:
        for node in self.nodes.values():
            if version is None:
                if uid in node.runs:
                    node.sync(uid, None)
            elif version.body["spec"].get("nodeName") == node.name:
                node.sync(uid, version.body)

    def _schedule(self) -> None:
        pods = [version.body for version in self.api.store.all("pods") if version.body["status"].get("phase") not in ENDED]
        nodes = [version.body for version in self.api.store.all("nodes")]
        for pod in pods:
            if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                continue
            if pod["spec"]["schedulerName"] != "default-scheduler":
                continue
            held = [other for other in pods if other["spec"].get("nodeName")]
            if bound := self._one(pod, nodes, held):
                pods[pods.index(pod)] = bound

    def _one(self, pod: Body, nodes: list[Body], held: list[Body]) -> Body | None:
        if pod["spec"].get("schedulingGates"):
            self._unscheduled(pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
            return None
        if lacking := self._lacking_claim(pod):
            self._unscheduled(pod, "Unschedulable", lacking)
            return None
        name, why = place(pod, nodes, held)
        if not name:
            self._unscheduled(pod, "Unschedulable", why)
            return None
        return self.bind(pod, name)

    def _lacking_claim(self, pod: Body) -> str:
        for volume in pod["spec"].get("volumes") or []:
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim and self.api.store.get("persistentvolumeclaims", pod["metadata"]["namespace"], claim) is None:
                return f'0/{len(self.nodes)} nodes are available: persistentvolumeclaim "{claim}" not found.'
        return ""

    def bind(self, pod: Body, node: str) -> Body:
        """Give a pod its node; what the binding subresource does."""
        new = clone(pod)
        new["spec"]["nodeName"] = node
        new["status"]["conditions"] = conditioned(new["status"].get("conditions") or [], "PodScheduled", True)
        metadata = new["metadata"]
        if pod["spec"].get("nodeName"):
            raise ApiError(409, "Conflict", f"pod {metadata['name']} is already assigned to node {pod['spec']['nodeName']!r}")
        bound = self.api.store.put("pods", metadata["namespace"], metadata["name"], new).body
        message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        self.events.add(bound, "Normal", "Scheduled", message, "default-scheduler")
        return bound

    def _unscheduled(self, pod: Body, reason: str, message: str) -> None:
        new = clone(pod)
        new["status"]["conditions"] = conditioned(new["status"].get("conditions") or [], "PodScheduled", False, reason, message)
        if self.api.update(self.api.kind("pods"), pod, new, subresource="status") is not pod and reason == "Unschedulable":
            self.events.add(pod, "Warning", "FailedScheduling", message, "default-scheduler")
