"""One emulated cluster: the server, its controllers, and the kubelet, in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

from aiohttp import web

from tests.emulator import controllers
from tests.emulator.access import Access
from tests.emulator.api import Api
from tests.emulator.bodies import Body
from tests.emulator.control import Control
from tests.emulator.crds import CrdController, definitions_of, read_definitions
from tests.emulator.faults import Faults
from tests.emulator.gc import GarbageCollector
from tests.emulator.kubelet.cluster import Cluster
from tests.emulator.namespaces import NamespaceController
from tests.emulator.options import Options
from tests.emulator.pod_requests import PodRequests
from tests.emulator.policies import SCHEDULING, accounts, podsecurity, priority, quota
from tests.emulator.server import Server
from tests.emulator.store import Change, Store

__all__ = ["Emulator"]

#: Seconds of a real cluster between a change and what the controllers make of it.
CONTROLLERS_TAKE = 0.2

NAMESPACES = ("kube-system", "kube-node-lease")

#: What MLBatch's set-up creates on a cluster with AppWrappers; the generator's `priority` names one of them.
PRIORITY_CLASSES = {"low-priority": 1, "default-priority": 5, "high-priority": 10}


class Emulator:
    """`start` serves it at `url`; `close` leaves no process and no file behind."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.folder = options.folder or Path(tempfile.mkdtemp(prefix="emulator-"))
        self.api = Api(store=Store(options.history))
        self.access = Access(self.api.store, enforce=options.rbac)
        self.faults = Faults()
        self.server = Server(self.api, self.access, self.faults, bookmark_every=options.bookmark_every)
        self.cluster = Cluster(self.api, self.access, options, self.folder)
        self._controllers = (CrdController(self.api), NamespaceController(self.api), GarbageCollector(self.api))
        self._work = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: controllers.Running | None = None
        self.url = ""
        self.api.store.listeners.append(self._changed)
        self.api.webhooks += controllers.webhooks(options.controllers)
        self.api.admission += [accounts(self.api), priority(self.api), podsecurity(self.api), quota(self.api)]
        self.pods = PodRequests(self.api, self.access, self.server, self.cluster)
        self.server.subresources.update(self.pods.handlers())

    async def start(self) -> None:
        for name in (*NAMESPACES, *self.options.namespaces):
            self.api.create(self.api.kind("namespaces"), "", {"metadata": {"name": name}})
        for definition in self._definitions():
            self.api.create(self.api.kind("customresourcedefinitions.apiextensions.k8s.io"), "", definition)
        if "appwrapper" in self.options.controllers:
            for name, value in PRIORITY_CLASSES.items():
                self.api.create(
                    self.api.kind(f"priorityclasses.{SCHEDULING}"), "", {"metadata": {"name": name}, "value": value}
                )
        self._sweep()
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/emulator/{tail:.*}", Control(self).handle)
        app.router.add_route("*", "/{tail:.*}", self.server.handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.options.port)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        self._tasks.append(asyncio.create_task(self._control_loop()))
        await self.cluster.start(self.url)
        if names := self.options.controllers:
            self._clients = await controllers.start(self.url, names, speed=self.options.speed, token=self.access.admin_token)

    def _definitions(self) -> tuple[Body, ...]:
        given = read_definitions(self.options.crds)
        names = {definition["metadata"]["name"] for definition in given}
        needed = read_definitions(definitions_of(self.options.controllers))
        return (*given, *(definition for definition in needed if definition["metadata"]["name"] not in names))

    async def close(self) -> None:
        if self._clients:
            await self._clients.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.close()
        self.server.hang_up_streams()
        if self._runner:
            await self._runner.cleanup()
        if self.options.folder is None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(shutil.rmtree, self.folder)

    def _changed(self, _: Change) -> None:
        self._work.set()

    async def _control_loop(self) -> None:
        while True:
            await self._work.wait()
            await asyncio.sleep(CONTROLLERS_TAKE / self.options.speed)
            self._work.clear()
            self._sweep()

    def _sweep(self) -> None:
        for controller in self._controllers:
            if controller.pending():
                controller.sweep()
