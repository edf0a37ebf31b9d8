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

from rallypoint.backends.certificates import EVERY
from rallypoint.backends.contract import BackendError, Blueprint, JobNotFoundError, Stored
from rallypoint.backends.local.certificates import renew
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.logs import LogReader, UnitLogReader
from rallypoint.backends.local.units import prepare_roles
from rallypoint.backends.ray import calls
from rallypoint.backends.ray.cluster import place
from rallypoint.backends.ray.cluster.directories import Directories, is_open
from rallypoint.backends.ray.cluster.holds import Holds
from rallypoint.backends.ray.cluster.jobs import NO_STAMP, ClusterJobs, Stamp, stamp_of
from rallypoint.backends.ray.cluster.mirror import Mirror, is_url
from rallypoint.backends.ray.cluster.nodes import Nodes
from rallypoint.backends.ray.cluster.units import ClusterUnits
from rallypoint.backends.ray.line import PATH, health_page
from rallypoint.backends.ray.placement import FILE
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.supervision.actions import Purge
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.supervision.role_records import UnitKey
from rallypoint.wire import codec
from rallypoint.wire.paths import HEALTH_PATH
from rallypoint.wire.plan import Plan
from rallypoint.wire.private import private_folder
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, proof_of
from rallypoint.wire.role_plans import role_plan

__all__ = ["Ledger"]

log = logging.getLogger(__name__)

#: Seconds between two looks at the files of the jobs, as on the local backend, and after which a ledger without jobs ends.
_LOOK, _IDLE = 0.2, 15.0

#: Bytes of the largest call: a job with a function.
_LARGEST = 64 << 20

#: Longest wait of one call for a change, in seconds.
_LONGEST_WAIT = 20.0


class Ledger:
    """The jobs of one namespace. `home` is the folder that holds them; "" is `~/.rallypoint/ray/NAMESPACE`.

    Where `home` is a URL, that folder holds them, too, and each change is at the URL before it is answered. `cluster` is the
    address of the cluster's GCS, by which Ray jobs of that cluster find this ledger.
    """

    def __init__(self, home: str, namespace: str, address: str, *, cluster: str = "") -> None:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        self._mirror = Mirror(home) if is_url(home) else None
        self.home = place.home_of(home, namespace)
        self._address, self._namespace, self._cluster = address, namespace, cluster
        self._url, self._key = "", secrets.token_urlsafe(32)
        self._changes: dict[str, int] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._starting = asyncio.Lock()

    async def open(self) -> dict[str, str]:
        """Start to answer calls; return the address and the key. A second call returns the same."""
        async with self._starting:
            if not self._url:
                await self._open()
        return {"url": self._url, "key": self._key}

    async def _open(self) -> None:
        await in_thread(private_folder, self.home)
        self._nodes = Nodes(lambda folder: self._changed(self._key_of(folder)))
        self._directories = Directories(self._address)
        self._units: dict[str, ClusterUnits] = {}
        self._jobs = ClusterJobs(self.home, host=self._address, nodes=self._nodes)
        self._holds = Holds(self.home)
        self._store = self._jobs.store
        if self._mirror is not None:
            await in_thread(self._mirror.open, self._store)
        application = web.Application(client_max_size=_LARGEST)
        self._add_routes(application.router)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self._address, 0)
        await site.start()
        port = runner.addresses[0][1]
        host = f"[{self._address}]" if ":" in self._address else self._address
        await in_thread(self._jobs.follow_all)
        await self._open_directories()
        self._url = f"http://{host}:{port}"
        if self._cluster:
            await in_thread(place.note, self.home, place.Place.of(self._url, self._key, self._namespace, self._cluster))
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._renew_certificates())]

    async def _open_directories(self) -> None:
        """Open the directories that running instances know."""
        for name in await in_thread(self._store.names):
            stored, folder = await in_thread(self._jobs.known, name), self._store.job(name)
            if stored is not None and not stored.record.released and await in_thread(is_open, folder):
                await self._directories.url(stored.record.uid, folder)

    def _key_of(self, folder: Path) -> str:
        """Return the key of a job in holds and changes: its name, or `JOB/JOB-ROLE` of an elastic role."""
        return "/".join(folder.relative_to(self.home).parts[1::2])

    def _at(self, given: dict[str, Any]) -> ClusterJobs:
        """Return the jobs among which a call has its job: those of the namespace, or of the elastic roles of one job."""
        within = given.get("parent", "")
        if not within:
            return self._jobs
        if not self._store.job(within).record.exists():
            raise JobNotFoundError(f"job {within!r} not found")
        return self._jobs.children(within)

    # --- changes ----------------------------------------------------------------------------------------------------------

    def _changed(self, name: str) -> None:
        self._changes[name] = self._changes.get(name, 0) + 1
        for news in self._waiting.get(name, ()):
            news.set()

    async def _watch(self) -> None:
        """Look at the files of all jobs, announce coordinators, remove groups that are needed no more, and end when idle."""
        known: dict[str, Stamp] = {}
        idle = time.monotonic()
        while True:
            try:
                for name in self._holds.expired():
                    self._changed(name)
                found = await in_thread(self._stamps)
                for key, stamp in found.items():
                    before, known[key] = known.get(key, NO_STAMP), stamp
                    if before.job != stamp.job or before.status != stamp.status:
                        self._changed(key)
                    if before.job != stamp.job:
                        await in_thread(self._tidy, key)
                    if stamp.endpoint and before.endpoint != stamp.endpoint:
                        self._nodes.announce(self._folder(key))
                if found or self._holds.any:
                    idle = time.monotonic()
            except (OSError, BackendError) as error:
                log.warning("the ledger cannot read the jobs of this Ray namespace: %s; retrying in %g s", error, _LOOK)
            if time.monotonic() - idle > _IDLE:
                os._exit(0)
            await asyncio.sleep(_LOOK)

    def _stamps(self) -> dict[str, Stamp]:
        """Return values that change with the jobs, by their keys."""
        found: dict[str, Stamp] = {}
        for name in self._store.names():
            folder = self._store.job(name)
            found[name] = stamp_of(folder)
            found |= {f"{name}/{role.path.name}": stamp_of(role) for role in folder.children()}
        return found

    def _folder(self, key: str) -> JobFolder:
        name, _, role = key.partition("/")
        folder = self._store.job(name)
        return self._jobs.children(name).store.job(role) if role else folder

    def _tidy(self, key: str) -> None:
        name, _, role = key.partition("/")
        if role:
            self._jobs.children(name).tidy(role)
        self._jobs.tidy(name)

    async def _keep(self, given: dict[str, Any], name: str) -> None:
        """Bring the changes of a job to the URL, before they are answered."""
        if self._mirror is not None:
            await in_thread(self._mirror.keep, self._store.job(given.get("parent") or name))

    async def _renew_certificates(self) -> None:
        """Renew certificates of `tls: auto`, now and at times; the nodes of a job receive them with the next report."""
        while True:
            try:
                for name in await in_thread(self._store.names):
                    if await in_thread(_renew, self._store.job(name)):
                        await self._keep({}, name)
            except (OSError, BackendError) as error:
                log.warning("the ledger cannot renew the TLS certificates of its jobs: %s; retrying in %g s", error, EVERY)
            await asyncio.sleep(EVERY)

    # --- calls ------------------------------------------------------------------------------------------------------------

    def _add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get(HEALTH_PATH, self._health)
        router.add_post(PATH + "{method}", self._answer)

    async def _health(self, request: web.Request) -> web.Response:
        """Return the health page, with the proof that this ledger has its key; the client sends the key only then."""
        page = health_page(self._url)
        nonce = request.headers.get(NONCE_HEADER, "").encode(errors="replace")
        return web.Response(
            body=page, content_type="application/json", headers={PROOF_HEADER: proof_of(self._key, nonce, page)}
        )

    async def _answer(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(errors="replace"), self._key.encode()):
            return web.json_response({"error": {"kind": "BackendError", "text": "the key of the ledger is wrong"}}, status=401)
        method: Callable[[dict[str, Any]], Awaitable[Any]] | None = getattr(self, f"_do_{request.match_info['method']}", None)
        if method is None:
            text = f"method {request.match_info['method']!r} is unknown to the ledger"
            return web.json_response({"error": {"kind": "BackendError", "text": text}}, status=404)
        try:
            arguments = json.loads(await request.read() or b"{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            text = "the body is not a JSON object"
            return web.json_response({"error": {"kind": "BackendError", "text": text}}, status=400)
        try:
            value = await method(arguments)
        except BackendError as error:
            return web.json_response({"error": calls.error_to(error)}, status=409)
        except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            log.exception("call %s failed", request.match_info["method"])
            return web.json_response({"error": {"kind": "BackendError", "text": f"ledger: {error}"}}, status=500)
        return web.json_response({"value": value})

    async def _do_load(self, given: dict[str, Any]) -> Any:
        stored = await self._at(given).load(given["name"])
        if stored is not None and given.get("me"):
            self._holds.check(_key(given, given["name"]), given["me"])
        return calls.stored_to(stored)

    async def _do_submit(self, given: dict[str, Any]) -> Any:
        stored = await in_thread(self._at(given).admit, _blueprint(given), owner=given["owner"], uid=given["uid"])
        await self._keep(given, stored.record.name)
        return calls.stored_to(stored)

    async def _do_save(self, given: dict[str, Any]) -> Any:
        record = JobRecord.from_json(json.dumps(given["record"]))
        blueprint = _blueprint(given["blueprint"]) if given.get("blueprint") else None
        stored = await self._at(given).save(record, version=given["version"], blueprint=blueprint)
        await self._keep(given, record.name)
        # Supervisors are woken by the next look: at once they would read their own record while workers restart.
        await in_thread(self._tidy, _key(given, record.name))
        return {"version": stored.version, "plan": codec.to_json(stored.plan)}

    async def _do_observe(self, given: dict[str, Any]) -> Any:
        record = JobRecord.from_json(json.dumps(given["record"]))
        return codec.to_json(await self._at(given).observe(record))

    async def _do_act(self, given: dict[str, Any]) -> Any:
        record = JobRecord.from_json(json.dumps(given["record"]))
        key = _key(given, record.name)
        if given.get("me"):
            self._holds.check(key, given["me"])
        plan = codec.from_json(Plan, given["plan"])
        action = calls.action_from(given["action"])
        await self._at(given).act(record, plan, action)
        if isinstance(action, Purge):
            self._units.pop(record.uid, None)
            await self._directories.close(record.uid)
        await self._keep(given, record.name)
        self._changed(key)

    async def _do_sweep(self, given: dict[str, Any]) -> Any:
        return await self._at(given).sweep(JobRecord.from_json(json.dumps(given["record"])))

    async def _do_status(self, given: dict[str, Any]) -> Any:
        return codec.to_json(await self._at(given).status(given["name"]))

    async def _do_names(self, _: dict[str, Any]) -> Any:
        return list(await self._jobs.names())

    async def _do_changes(self, given: dict[str, Any]) -> Any:
        name, seen = _key(given, given["name"]), given["seen"]
        until = min(float(given["within"]), _LONGEST_WAIT)
        news, waiting = asyncio.Event(), self._waiting.setdefault(name, set())
        waiting.add(news)
        try:
            if self._changes.get(name, 0) == seen:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), until)
        finally:
            waiting.discard(news)
            if not waiting:
                del self._waiting[name]
        return {"seen": self._changes.get(name, 0)}

    async def _do_logs(self, given: dict[str, Any]) -> Any:
        reader, over = await self._reader(given)
        lines = await in_thread(reader.read, final=over)
        return {"lines": calls.lines_to(lines), "over": over}

    async def _do_tail(self, given: dict[str, Any]) -> Any:
        reader, over = await self._reader(given)
        return calls.tail_to(await in_thread(reader.tail, int(given["lines"]), final=over))

    async def _reader(self, given: dict[str, Any]) -> tuple[LogReader, bool]:
        jobs = self._at(given)
        stored = await jobs.load(given["name"])
        if stored is None:
            raise JobNotFoundError(f"job {given['name']!r} not found")
        folder = jobs.store.job(given["name"])
        rank, cursor, own = given.get("rank"), given.get("cursor", ""), not stored.plan.logs.log_dir
        reader = await in_thread(LogReader, folder, stored.plan, rank=rank, cursor=cursor, own_folder=own)
        return reader, stored.record.released

    async def _do_hold(self, given: dict[str, Any]) -> Any:
        if await self._at(given).load(given["name"]) is None:
            raise JobNotFoundError(f"job {given['name']!r} not found")
        self._holds.take(_key(given, given["name"]), given["me"], given["holder"])

    async def _do_release(self, given: dict[str, Any]) -> Any:
        key = _key(given, given["name"])
        self._holds.release(key, given["me"])
        self._changed(key)

    async def _do_beat(self, given: dict[str, Any]) -> Any:
        self._holds.beat(given["me"], given.get("jobs", {}), leave=given.get("leave", False))
        return str(await in_thread(self._holds.write, given["me"]))

    async def _do_pulse(self, given: dict[str, Any]) -> Any:
        pulse = await in_thread(self._holds.pulse, codec.from_json(Holder, given["holder"]))
        return codec.to_json(pulse)

    # --- calls about the units of a job with roles ------------------------------------------------------------------------

    async def _units_of(self, given: dict[str, Any]) -> tuple[ClusterUnits, Stored]:
        stored = await self._jobs.load(given["name"])
        if stored is None or stored.record.uid != given["uid"]:
            raise JobNotFoundError(f"job {given['name']!r} not found")
        if given.get("me"):
            self._holds.check(given["name"], given["me"])
        uid, folder = given["uid"], self._store.job(given["name"])
        await in_thread(prepare_roles, folder, stored.plan)
        url = "" if stored.record.released else await self._directories.url(uid, folder)
        if uid not in self._units or (url and self._units[uid].url != url):
            self._units[uid] = ClusterUnits(self._jobs.children(given["name"]), self._store, folder, self._nodes, url=url)
        return self._units[uid], stored

    async def _do_unit_observe(self, given: dict[str, Any]) -> Any:
        units, stored = await self._units_of(given)
        return codec.to_json(await units.observe(stored.record, stored.plan))

    async def _do_unit_admit(self, given: dict[str, Any]) -> Any:
        units, stored = await self._units_of(given)
        await units.admit(stored.record, stored.plan)

    async def _do_unit_start(self, given: dict[str, Any]) -> Any:
        units, stored = await self._units_of(given)
        await units.start(stored.record, stored.plan, codec.from_json(UnitKey, given["key"]))
        await self._keep(given, stored.record.name)
        self._changed(stored.record.name)

    async def _do_unit_stop(self, given: dict[str, Any]) -> Any:
        units, stored = await self._units_of(given)
        key = codec.from_json(UnitKey, given["key"])
        await units.stop(stored.record, stored.plan, key, force=given["force"] is True)
        await self._keep(given, stored.record.name)

    async def _do_unit_release(self, given: dict[str, Any]) -> Any:
        units, stored = await self._units_of(given)
        released = await units.release(stored.record, stored.plan)
        if released and (stored.record.finished or stored.record.deletion):
            await self._directories.close(stored.record.uid)
        return released

    async def _do_unit_blueprint(self, given: dict[str, Any]) -> Any:
        units, stored = await self._units_of(given)
        job, plan, placement = await in_thread(units.child, stored.record, stored.plan, given["role"])
        return {
            "document": job.to_document(),
            "plan": codec.to_json(plan),
            "placement": codec.dumps(placement),
            "environment": dict(units.environment(stored.record, stored.plan)),
        }

    async def _do_unit_logs(self, given: dict[str, Any]) -> Any:
        reader, over = await self._unit_reader(given)
        lines = await in_thread(reader.read, final=over)
        return {"lines": calls.lines_to(lines), "over": over}

    async def _do_unit_tail(self, given: dict[str, Any]) -> Any:
        reader, over = await self._unit_reader(given)
        return calls.tail_to(await in_thread(reader.tail, int(given["lines"]), final=over))

    async def _unit_reader(self, given: dict[str, Any]) -> tuple[UnitLogReader, bool]:
        stored = await self._jobs.load(given["name"])
        if stored is None:
            raise JobNotFoundError(f"job {given['name']!r} not found")
        folder, plan = self._store.job(given["name"]), role_plan(stored.plan, given["role"]).read()
        rank, cursor = given.get("rank"), given.get("cursor", "")
        own = not plan.logs.log_dir
        reader = await in_thread(UnitLogReader, folder, plan, given["role"], rank=rank, cursor=cursor, own_folder=own)
        return reader, stored.record.released


def _renew(folder: JobFolder) -> bool:
    """Renew the certificates of a job and of its elastic roles; return whether there is a new one."""
    return sum(renew(one, one.path.name, time.time()) for one in (folder, *folder.children())) > 0


def _key(given: dict[str, Any], name: str) -> str:
    within = given.get("parent", "")
    return f"{within}/{name}" if within else name


def _blueprint(given: dict[str, Any]) -> Blueprint:
    job = calls.job_from(given["document"])
    return Blueprint(
        job=job,
        plan=codec.from_json(Plan, given["plan"]),
        objects=(),
        attached={FILE: given["placement"]},
        function=given["function"],
        claimant=given["claimant"],
    )
