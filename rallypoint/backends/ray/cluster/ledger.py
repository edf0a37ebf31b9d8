"""The ledger: the detached actor that holds the jobs of a Ray namespace and answers the calls of their supervisors.

It keeps records, coordinators and logs in a folder of its machine, by default on the head node, so that another ledger finds
them there after it was lost. It decides nothing: supervisors do, by the same loop as on every backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from rallypoint.backends.contract import BackendError, Blueprint, JobNotFoundError
from rallypoint.backends.local import durable
from rallypoint.backends.local.logs import LogReader
from rallypoint.backends.local.store import Store
from rallypoint.backends.local.threads import in_thread
from rallypoint.backends.ray import calls
from rallypoint.backends.ray.cluster.holds import Holds
from rallypoint.backends.ray.cluster.jobs import ClusterJobs
from rallypoint.backends.ray.cluster.mirror import Mirror, is_url
from rallypoint.backends.ray.cluster.nodes import Nodes
from rallypoint.backends.ray.placement import FILE
from rallypoint.job import load_job
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan
from rallypoint.wire.private import private_folder

__all__ = ["Ledger"]

log = logging.getLogger(__name__)

#: Seconds between two looks at the files of the jobs, and after which a ledger without jobs ends.
_LOOK, _IDLE = 0.1, 15.0

#: Bytes of the largest call: a job with a function.
_LARGEST = 64 << 20

#: Longest wait of one call for a change, in seconds.
_LONGEST_WAIT = 20.0

_KEY = "ledger.key"


class Ledger:
    """The jobs of one namespace. `home` is the folder that holds them; "" is `~/.rallypoint/ray/NAMESPACE`.

    Where `home` is a URL, that folder holds them, too, and each change is at the URL before it is answered.
    """

    def __init__(self, home: str, namespace: str, address: str) -> None:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        self._mirror = Mirror(home) if is_url(home) else None
        folder = "" if is_url(home) else home
        self.home = Path(folder or f"~/.rallypoint/ray/{namespace}").expanduser().absolute()
        self._address = address
        self._url = self._key = ""
        self._changes: dict[str, int] = {}
        self._news = asyncio.Condition()
        self._starting = asyncio.Lock()

    async def open(self) -> dict[str, str]:
        """Start to answer calls; return the address and the key. A second call returns the same."""
        async with self._starting:
            if not self._url:
                await self._open()
        return {"url": self._url, "key": self._key}

    async def _open(self) -> None:
        await in_thread(self._prepare)
        self._nodes = Nodes(self._changed)
        self._jobs = ClusterJobs(self.home, host=self._address, nodes=self._nodes)
        self._holds = Holds(self.home)
        self._store = Store(home=self.home)
        if self._mirror is not None:
            await in_thread(self._mirror.open, self._store)
        application = web.Application(client_max_size=_LARGEST)
        application.router.add_post(calls.PATH + "{method}", self._answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self._address, 0)
        await site.start()
        port = runner.addresses[0][1]
        host = f"[{self._address}]" if ":" in self._address else self._address
        await in_thread(self._jobs.follow_all)
        self._url = f"http://{host}:{port}"
        self._watching = asyncio.create_task(self._watch())

    def _prepare(self) -> None:
        private_folder(self.home)
        path = self.home / _KEY
        if not path.exists():
            durable.write_text(str(path), secrets.token_urlsafe(32))
        self._key = path.read_text().strip()

    # --- changes ----------------------------------------------------------------------------------------------------------

    def _changed(self, name: str) -> None:
        self._changes[name] = self._changes.get(name, 0) + 1
        asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _watch(self) -> None:
        """Look at the files of all jobs, announce coordinators, remove groups that are needed no more, and end when idle."""
        stamps: dict[str, tuple[int, ...]] = {}
        endpoints: dict[str, str] = {}
        idle = time.monotonic()
        while True:
            try:
                for name in self._holds.expired():
                    self._changed(name)
                names = await in_thread(self._store.names)
                for name, stamp in (await in_thread(self._stamps, names)).items():
                    if stamps.get(name) != stamp:
                        stamps[name] = stamp
                        self._changed(name)
                        await in_thread(self._jobs.tidy, name)
                    text = await in_thread(self._jobs.endpoint_text, name)
                    if text and endpoints.get(name) != text:
                        endpoints[name] = text
                        await self._nodes.announce(self._store.job(name), text)
                if names or self._holds.any:
                    idle = time.monotonic()
            except (OSError, BackendError) as error:
                log.warning("cannot look at the jobs: %s", error)
            if time.monotonic() - idle > _IDLE:
                os._exit(0)
            await asyncio.sleep(_LOOK)

    def _stamps(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        return {name: self._jobs.stamp(name) for name in names}

    async def _keep(self, name: str) -> None:
        """Bring the changes of a job to the URL, before they are answered."""
        if self._mirror is not None:
            await in_thread(self._mirror.keep, self._store.job(name))

    # --- calls ------------------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            return web.json_response({"error": {"kind": "BackendError", "text": "the key of the ledger is wrong"}}, status=401)
        method: Callable[[dict[str, Any]], Awaitable[Any]] | None = getattr(self, f"_do_{request.match_info['method']}", None)
        if method is None:
            text = f"method {request.match_info['method']!r} is unknown to the ledger"
            return web.json_response({"error": {"kind": "BackendError", "text": text}}, status=404)
        try:
            value = await method(json.loads(await request.read() or b"{}"))
        except BackendError as error:
            return web.json_response({"error": calls.error_to(error)}, status=409)
        except (OSError, KeyError, TypeError, ValueError) as error:
            log.exception("call %s failed", request.match_info["method"])
            return web.json_response({"error": {"kind": "BackendError", "text": f"ledger: {error}"}}, status=500)
        return web.json_response({"value": value})

    async def _do_ping(self, _: dict[str, Any]) -> Any:
        return {"home": str(self.home), "pid": os.getpid()}

    async def _do_load(self, given: dict[str, Any]) -> Any:
        stored = await self._jobs.load(given["name"])
        if stored is not None and given.get("me"):
            self._holds.check(given["name"], given["me"])
        return calls.stored_to(stored)

    async def _do_submit(self, given: dict[str, Any]) -> Any:
        stored = await in_thread(self._jobs.admit, _blueprint(given), owner=given["owner"], uid=given["uid"])
        await self._keep(stored.record.name)
        return calls.stored_to(stored)

    async def _do_save(self, given: dict[str, Any]) -> Any:
        record = JobRecord.from_json(json.dumps(given["record"]))
        blueprint = _blueprint(given["blueprint"]) if given.get("blueprint") else None
        stored = await self._jobs.save(record, version=given["version"], blueprint=blueprint)
        await self._keep(record.name)
        self._changed(record.name)
        await in_thread(self._jobs.tidy, record.name)
        return {"version": stored.version, "plan": codec.to_json(stored.plan)}

    async def _do_observe(self, given: dict[str, Any]) -> Any:
        record = JobRecord.from_json(json.dumps(given["record"]))
        return codec.to_json(await self._jobs.observe(record))

    async def _do_act(self, given: dict[str, Any]) -> Any:
        record = JobRecord.from_json(json.dumps(given["record"]))
        if given.get("me"):
            self._holds.check(record.name, given["me"])
        plan = codec.from_json(Plan, given["plan"])
        await self._jobs.act(record, plan, calls.action_from(given["action"]))
        await self._keep(record.name)
        self._changed(record.name)

    async def _do_sweep(self, given: dict[str, Any]) -> Any:
        return await self._jobs.sweep(JobRecord.from_json(json.dumps(given["record"])))

    async def _do_status(self, given: dict[str, Any]) -> Any:
        return codec.to_json(await self._jobs.status(given["name"]))

    async def _do_names(self, _: dict[str, Any]) -> Any:
        return list(await self._jobs.names())

    async def _do_changes(self, given: dict[str, Any]) -> Any:
        name, seen = given["name"], given["seen"]
        until = min(float(given["within"]), _LONGEST_WAIT)
        async with self._news:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait_for(lambda: self._changes.get(name, 0) != seen), until)
        return {"seen": self._changes.get(name, 0)}

    async def _do_logs(self, given: dict[str, Any]) -> Any:
        reader, over = await self._reader(given)
        lines = await in_thread(reader.read, final=over)
        return {"lines": codec.to_json(tuple(lines)), "over": over}

    async def _do_tail(self, given: dict[str, Any]) -> Any:
        reader, over = await self._reader(given)
        return codec.to_json(await in_thread(reader.tail, int(given["lines"]), final=over))

    async def _reader(self, given: dict[str, Any]) -> tuple[LogReader, bool]:
        stored = await self._jobs.load(given["name"])
        if stored is None:
            raise JobNotFoundError(f"job {given['name']!r} not found")
        folder = self._store.job(given["name"])
        reader = LogReader(
            folder, stored.plan, rank=given.get("rank"), cursor=given.get("cursor", ""), own_folder=not stored.plan.logs.log_dir
        )
        return reader, stored.record.released

    async def _do_hold(self, given: dict[str, Any]) -> Any:
        if await self._jobs.load(given["name"]) is None:
            raise JobNotFoundError(f"job {given['name']!r} not found")
        self._holds.take(given["name"], given["me"], given["holder"])

    async def _do_release(self, given: dict[str, Any]) -> Any:
        self._holds.release(given["name"], given["me"])
        self._changed(given["name"])

    async def _do_beat(self, given: dict[str, Any]) -> Any:
        return str(await in_thread(self._holds.beat, given["me"], given.get("jobs", {}), leave=given.get("leave", False)))

    async def _do_pulse(self, given: dict[str, Any]) -> Any:
        pulse = await in_thread(self._holds.pulse, codec.from_json(Holder, given["holder"]))
        return codec.to_json(pulse)


def _blueprint(given: dict[str, Any]) -> Blueprint:
    job = load_job(given["document"], based=False)
    return Blueprint(
        job=job,
        plan=codec.from_json(Plan, given["plan"]),
        objects=(),
        attached={FILE: given["placement"]},
        function=given["function"],
        claimant=given["claimant"],
    )
