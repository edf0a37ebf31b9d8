"""Read-only observation of jobs for sensors: once from a worker, or continuously from the triggerer.

Importing this takes half a second, so the trigger imports it in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import operator
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rallypoint.backends.contract import Backend, BackendError, Changes, JobNotFoundError, is_role_of, role_job
from rallypoint.provider.place import Place
from rallypoint.provider.sensing.conditions import Condition
from rallypoint.provider.sensing.evaluation import judge
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.observation import GAP, Memory, Seen
from rallypoint.supervision.masking import masked_record, masked_status
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan, role_plans
from rallypoint.wire.status import JobStatus, Progress

__all__ = [
    "PATIENCE",
    "Opener",
    "Sight",
    "Waiting",
    "Watcher",
    "elastic_record",
    "look",
    "see",
    "simple_record",
    "streaming",
    "watched",
]

log = logging.getLogger(__name__)

#: Seconds for which a backend may fail without a break before those who wait are told so.
PATIENCE = 300.0

#: Pause after a failure of the backend, in seconds: doubled from the first to the last while it goes on.
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0

#: Opens the backend of a place; may block, and is called in a thread.
Opener = Callable[[], Backend]

_OVER = (Phase.SUCCEEDED, Phase.FAILED, Phase.TERMINATING)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What was seen of a job, or of one of its roles; nothing of it where there is none. `max_nodes` is 0 then.

    `roles` are those of a job with several, by name: whether each is elastic. None where no job was seen.
    """

    record: JobRecord | None = None
    status: JobStatus | None = None
    max_nodes: int = 0
    roles: Mapping[str, bool] | None = None


async def see(backend: Backend, name: str, *, live: bool, role: str = "") -> Sight:
    """Look once: `live` asks the coordinator, or else what is written down has to do. Raises `BackendError`."""
    stored = await backend.load(name)
    if stored is None:
        return Sight()
    roles = {one.name: one for one in role_plans(stored.plan)}
    told = {one.name: one.elastic for one in roles.values()}
    if role in roles:
        sight = await _see_role(backend, stored.record, roles[role], live=live)
        return dataclasses.replace(await asyncio.to_thread(_masked, sight, stored.plan), roles=told)
    status = await (backend.status(name) if live else backend.written(name))
    sight = Sight(record=stored.record, status=status, max_nodes=stored.plan.max_nodes, roles=told)
    return await asyncio.to_thread(_masked, sight, stored.plan)


def _masked(sight: Sight, plan: Plan) -> Sight:
    """Return what was seen without the secrets of the job: an error of a call may quote those of another role."""
    mask = mask_of_plan(plan)
    record = None if sight.record is None else masked_record(sight.record, mask)
    status = None if sight.status is None else masked_status(sight.status, mask)
    return dataclasses.replace(sight, record=record, status=status)


async def _see_role(backend: Backend, job: JobRecord, role: RolePlan, *, live: bool) -> Sight:
    if not role.elastic:
        return Sight(record=simple_record(job, role))
    jobs, name = backend.units(job.name).jobs, role_job(job.name, role.name)
    own = await jobs.load(name)
    if own is None or not is_role_of(own.record, job):
        return Sight(record=elastic_record(job, None, name))
    status = await (jobs.status(name) if live else jobs.written(name))
    return Sight(record=elastic_record(job, own.record, name), status=status, max_nodes=own.plan.max_nodes)


class Watcher:
    """One of those who wait for a job.

    Attributes:
        poll: seconds between two looks at a job of which nothing is heard, at the most.
        live: wants what the coordinator says now; what is written down may be half a minute old where only progress is new.
    """

    def __init__(self, stream: _Stream, *, poll: float, live: bool) -> None:
        self.poll, self.live = poll, live
        self.news = asyncio.Event()
        self._stream = stream

    async def look(self) -> Sight:
        """Return what is seen now, once anything was. Raises `BackendError` where nothing can be seen for long, or ever."""
        while True:
            if self._stream.error is not None:
                raise self._stream.error
            if self._stream.sight is not None:
                return self._stream.sight
            await self.wait(_LAST_PAUSE)

    async def wait(self, timeout: float) -> None:
        """Return at news, or those since the last call, or after `timeout` seconds."""
        # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with the news.
        news = asyncio.ensure_future(self.news.wait())
        try:
            await asyncio.wait([news], timeout=timeout)
        finally:
            news.cancel()
        self.news.clear()


@contextlib.asynccontextmanager
async def streaming(
    place: Place, name: str, opener: Opener, *, poll: float, live: bool = False, role: str = ""
) -> AsyncIterator[Watcher]:
    """Watch a job or a role while the context lasts, with everybody else in this event loop who does. Raises `BackendError`."""
    stations = _stations.setdefault(asyncio.get_running_loop(), {})
    station = stations.get(place)
    if station is None or station.broken:
        station = stations[place] = _Station()
    station.users += 1
    try:
        async with station.watching(name, opener, poll=poll, live=live, role=role) as watcher:
            yield watcher
    finally:
        station.users -= 1
        if not station.users:
            if stations.get(place) is station:
                del stations[place]
            await station.close()


class _Stream:
    """One job of one backend, or one role of it, looked at by a task of its own."""

    def __init__(self, backend: Backend, name: str, role: str) -> None:
        self._backend, self._name, self._role = backend, name, role
        self._task: asyncio.Task[None] | None = None
        self.watchers: set[Watcher] = set()
        self.sight: Sight | None = None
        self.error: BackendError | None = None

    def start(self) -> None:
        """Begin to look; once is enough."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"stream {self._name}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        failing, pause, loop = None, _FIRST_PAUSE, asyncio.get_running_loop()
        while True:
            try:
                async with self._changes() as changes:
                    while True:
                        live = any(watcher.live for watcher in self.watchers)
                        await self._tell(await see(self._backend, self._name, live=live, role=self._role))
                        failing, pause = None, _FIRST_PAUSE
                        await changes.wait(min((watcher.poll for watcher in self.watchers), default=_LAST_PAUSE))
            except (BackendError, OSError) as error:
                failing = loop.time() if failing is None else failing
                # What can be no job's name will not be one later.
                if isinstance(error, JobNotFoundError) or loop.time() - failing >= PATIENCE:
                    self._fail(error)
                    return
                log.warning("job=%s: %s; retrying in %g s", self._name, error, pause)
            except Exception as error:  # noqa: BLE001  whatever it is, those who wait must not wait for ever
                self._fail(error)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _changes(self) -> AbstractAsyncContextManager[Changes]:
        """Follow the job; of a role, the job that it is, since what else changes there is seen at the next look."""
        if not self._role:
            return self._backend.changes(self._name)
        return self._backend.units(self._name).jobs.changes(role_job(self._name, self._role))

    async def _tell(self, sight: Sight) -> None:
        if self.sight is None or await asyncio.to_thread(operator.ne, sight, self.sight):
            self.sight = sight
            self._wake()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, BackendError):
            self.error = error
        else:
            self.error = BackendError(f"cannot read job {self._name}: {type(error).__name__}: {error}")
        self._wake()

    def _wake(self) -> None:
        for watcher in self.watchers:
            watcher.news.set()


class _Station:
    """One place in one event loop: its backend, and a stream for each job that somebody waits for."""

    def __init__(self) -> None:
        self.users = 0
        self._backend: Backend | None = None
        self._opening = asyncio.Lock()
        self._streams: dict[tuple[str, str], _Stream] = {}

    @property
    def broken(self) -> bool:
        """Whether the backend does not work any more: its connection may have been changed, so the next one opens it anew."""
        return any(s.error is not None and not isinstance(s.error, JobNotFoundError) for s in self._streams.values())

    @contextlib.asynccontextmanager
    async def watching(self, name: str, opener: Opener, *, poll: float, live: bool, role: str) -> AsyncIterator[Watcher]:
        backend, key = await self._opened(opener), (name, role)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(backend, name, role)
        watcher = Watcher(stream, poll=poll, live=live)
        stream.watchers.add(watcher)
        stream.start()
        try:
            yield watcher
        finally:
            stream.watchers.discard(watcher)
            if not stream.watchers:
                del self._streams[key]
                await stream.stop()

    async def _opened(self, opener: Opener) -> Backend:
        async with self._opening:
            if self._backend is None:
                # In a thread: opening a backend imports what it needs, and nobody else may wait for that.
                self._backend = await asyncio.to_thread(opener)
            return self._backend

    async def close(self) -> None:
        if self._backend is not None:
            await self._backend.close()


#: The places of each event loop.
_stations: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Place, _Station]] = weakref.WeakKeyDictionary()


#: Shortest pause between two looks at a time that is nearly over, in seconds: a rounding error must not spin.
_SHORTEST = 0.01

#: Seconds between two lines in the task's log about a job that is still waited for.
_TELL_EVERY = 15.0


async def look(
    backend: Callable[[], Backend], name: str, condition: Condition, memory: Memory, *, now: float, poll: float, role: str = ""
) -> tuple[Finding, Memory]:
    """Judge the job as it is now; one that does not exist may still be submitted. Raises `BackendError`."""
    opened = await asyncio.to_thread(backend)
    try:
        sight = await see(opened, name, live=True, role=role)
    except JobNotFoundError as error:
        return _no_job(error), memory
    finally:
        await opened.close()
    return judge(condition, name, _seen(sight, now=now, poll=poll, role=role), memory)


class Waiting(Protocol):
    """What a sensor's trigger waits for: `condition` of the job at `place`, looked at every `poll_interval` seconds."""

    condition: Condition
    poll_interval: float
    role: str | None

    @property
    def log(self) -> Any:
        """Logs for the task."""

    @property
    def place(self) -> Place:
        """Where the job is."""

    def open_backend(self) -> Backend:
        """Return the backend that holds the job. Blocks; called in a thread."""


async def watched(trigger: Waiting, name: str) -> Finding:
    """Watch a job until the condition of a trigger is met or cannot be. Raises `BackendError`."""
    loop, memory, told, tell_at = asyncio.get_running_loop(), Memory(), "", 0.0
    role, live = trigger.role or "", trigger.condition.live
    stream = streaming(trigger.place, name, trigger.open_backend, poll=trigger.poll_interval, live=live, role=role)
    async with stream as watcher:
        while True:
            try:
                sight = await watcher.look()
            except JobNotFoundError as error:
                return _no_job(error)
            seen = _seen(sight, now=loop.time(), poll=trigger.poll_interval, role=role)
            # In a thread: a job's record and status may be megabytes, and other triggers share the event loop.
            finding, memory = await asyncio.to_thread(judge, trigger.condition, name, seen, memory)
            if finding.found is not Found.WAITING:
                return finding
            if finding.text != told and loop.time() >= tell_at:
                told, tell_at = finding.text, loop.time() + _TELL_EVERY
                trigger.log.info("%s", told)
            # What has to be so for a while is looked at now and then, since only what was looked at counts.
            left = seen.gap / 2 if finding.wake is None else max(_SHORTEST, min(finding.wake, seen.gap / 2))
            await watcher.wait(left)


def _seen(sight: Sight, *, now: float, poll: float, role: str) -> Seen:
    seen = Seen(record=sight.record, status=sight.status, max_nodes=sight.max_nodes, now=now, gap=max(GAP, 2 * poll))
    return dataclasses.replace(seen, role=role, roles=sight.roles)


def _no_job(error: JobNotFoundError) -> Finding:
    return Finding(found=Found.IMPOSSIBLE, text=str(error))


def elastic_record(job: JobRecord, own: JobRecord | None, name: str) -> JobRecord | None:
    """Return the record of an elastic role, whose own job is `name`; None while that does not exist.

    A role that failed may run again while its job goes on. Of a job that is over, nothing runs again.
    """
    if own is None:
        return _as_ended(job, dataclasses.replace(job, name=name, progress=Progress())) if job.phase in _OVER else None
    if job.phase in _OVER and own.phase is not Phase.SUCCEEDED:
        return _as_ended(job, own)
    if own.phase is Phase.FAILED:
        return dataclasses.replace(own, phase=Phase.RESETTING, verdict=None)
    return own


def _as_ended(job: JobRecord, own: JobRecord) -> JobRecord:
    return dataclasses.replace(own, phase=job.phase, verdict=job.verdict, attempts=job.attempts)


def simple_record(job: JobRecord, role: RolePlan) -> JobRecord:
    """Return a record of a simple role: that of its job, which has succeeded once all instances of the role have."""
    record = dataclasses.replace(job, name=f"{job.name}-{role.name}", progress=Progress())
    own = next((one for one in job.conductor.roles if one.name == role.name), None) if job.conductor is not None else None
    if own is not None and role.total and len(own.done) == role.total and job.phase not in _OVER:
        return dataclasses.replace(record, phase=Phase.SUCCEEDED)
    return record
