"""Looking at a job without touching it, for sensors: once from a worker, or until something is so from the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rallypoint.backends.contract import Backend, JobNotFoundError
from rallypoint.provider.delivery import finding_event
from rallypoint.provider.doors import open_backend
from rallypoint.provider.place import Place, place_of
from rallypoint.provider.sensing.conditions import Condition
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.judging import judge, read_condition
from rallypoint.provider.sensing.seen import GAP, Memory, Seen
from rallypoint.provider.sensing.stream import Sight, see, streaming
from rallypoint.provider.sensing.whose import Asker, Asking, FromAirflow, Whose, find_name
from rallypoint.provider.task_state import TaskKey

__all__ = ["JobConditionTrigger", "look"]

#: Shortest pause between two looks at a time that is nearly over, in seconds: a rounding error must not spin.
_SHORTEST = 0.01

#: Seconds between two lines in the task's log about a job that is still waited for.
_TELL_EVERY = 15.0


async def look(
    backend: Callable[[], Backend], name: str, condition: Condition, memory: Memory, *, now: float, poll: float
) -> tuple[Finding, Memory]:
    """Judge the job as it is now; one that does not exist may still be submitted. Raises `BackendError`."""
    opened = await asyncio.to_thread(backend)
    try:
        sight = await see(opened, name, live=True)
    except JobNotFoundError as error:
        return _no_job(error), memory
    finally:
        await opened.close()
    return judge(condition, name, _seen(sight, now=now, poll=poll), memory)


class JobConditionTrigger(BaseTrigger):
    """Waits until a job is where a sensor expects it, or cannot come there any more.

    Its arguments are identifiers, and bear the names of the sensor's own: Airflow renders the templates of those when a task
    is started from its trigger. `poll_interval` is in seconds.
    """

    def __init__(
        self,
        *,
        condition: dict[str, Any],
        job_name: str | None = None,
        job_task_id: str | None = None,
        job_map_index: int | None = None,
        asked_by: dict[str, Any] | None = None,
        poll_interval: float = 5.0,
        backend: str | None = None,
        conn_id: str | None = None,
        home: str | None = None,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        cluster_context: str | None = None,
    ) -> None:
        super().__init__()
        self.condition = read_condition(condition)
        self.job_name = job_name
        self.job_task_id = job_task_id
        self.job_map_index = job_map_index
        self.asked_by = asked_by
        self.poll_interval = poll_interval
        self.backend = backend
        self.conn_id = conn_id
        self.home = home
        self.namespace = namespace
        self.kubeconfig = kubeconfig
        self.cluster_context = cluster_context

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return this class's path and its arguments: identifiers only."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "condition": self.condition.words(),
            "job_name": self.job_name,
            "job_task_id": self.job_task_id,
            "job_map_index": self.job_map_index,
            "asked_by": self.asked_by,
            "poll_interval": self.poll_interval,
            "backend": self.backend,
            "conn_id": self.conn_id,
            "home": self.home,
            "namespace": self.namespace,
            "kubeconfig": self.kubeconfig,
            "cluster_context": self.cluster_context,
        }

    @property
    def place(self) -> Place:
        """Where the job is."""
        return place_of(self)

    def open_backend(self) -> Backend:
        """Return the backend that holds the job, its connection read anew. Blocks; called in a thread."""
        return open_backend(self.place)

    def ask(self) -> Asking:
        """Return who is asked about the task that owns the job."""
        return FromAirflow(ti=self._who())

    def _who(self) -> TaskKey:
        # `dag.test()` runs triggers that have no task instance; one that a scheduler has started has no `asked_by`.
        if self.asked_by is not None:
            return Asker(**self.asked_by)
        if self.task_instance is None:
            raise RuntimeError("the trigger has no task instance, so it cannot find the name of the job")
        return self.task_instance

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event whose payload is a `Finding`, whatever happens, except when the trigger is cancelled."""
        try:
            named = await self._named()
            finding = named if isinstance(named, Finding) else await self._watched(named)
        except Exception as error:
            self.log.exception("Watching the job failed")
            finding = Finding(found=Found.ERROR, text=f"watching the job failed: {type(error).__name__}: {error}")
        yield TriggerEvent(finding_event(finding))

    async def _named(self) -> str | Finding:
        """Return the job's name as soon as there is one."""
        whose = Whose(name=self.job_name or "", task_id=self.job_task_id or "", index=self.job_map_index)
        while True:
            named = whose.name or await find_name(whose, self._own_index(), self.ask())
            if isinstance(named, str) or named.found is not Found.WAITING:
                return named
            await asyncio.sleep(self.poll_interval)

    def _own_index(self) -> int:
        own = self.asked_by["map_index"] if self.asked_by is not None else getattr(self.task_instance, "map_index", -1)
        return -1 if own is None else own

    async def _watched(self, name: str) -> Finding:
        loop, memory, told, tell_at = asyncio.get_running_loop(), Memory(), "", 0.0
        stream = streaming(self.place, name, self.open_backend, poll=self.poll_interval, live=self.condition.live)
        async with stream as watcher:
            while True:
                try:
                    sight = await watcher.look()
                except JobNotFoundError as error:
                    return _no_job(error)
                seen = _seen(sight, now=loop.time(), poll=self.poll_interval)
                finding, memory = judge(self.condition, name, seen, memory)
                if finding.found is not Found.WAITING:
                    return finding
                if finding.text != told and loop.time() >= tell_at:
                    told, tell_at = finding.text, loop.time() + _TELL_EVERY
                    self.log.info("%s", told)
                # What has to be so for a while is looked at now and then, since only what was looked at counts.
                left = seen.gap / 2 if finding.wake is None else max(_SHORTEST, min(finding.wake, seen.gap / 2))
                await watcher.wait(left)


def _seen(sight: Sight, *, now: float, poll: float) -> Seen:
    gap = max(GAP, 2 * poll)
    return Seen(record=sight.record, status=sight.status, max_nodes=sight.max_nodes, now=now, gap=gap)


def _no_job(error: JobNotFoundError) -> Finding:
    return Finding(found=Found.IMPOSSIBLE, text=str(error))
