"""The trigger of a sensor that waits for a condition of a job.

Airflow imports this module in the triggerer's event loop, where all other triggers wait meanwhile. So it imports little:
everything that looks at jobs is in `streams.py`, which is imported in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rallypoint.provider.delivery import finding_event
from rallypoint.provider.place import Place, place_of
from rallypoint.provider.sensing.conditions import (
    Condition,
    HangCondition,
    ProgressCondition,
    RendezvousCondition,
    StateCondition,
)
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.provider.sensing.whose import Asker, Asking, FromAirflow, Whose, find_name
from rallypoint.provider.task_state import TaskKey
from rallypoint.wire import codec

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["JobConditionTrigger", "read_condition"]


class JobConditionTrigger(BaseTrigger):
    """Waits until the condition of a sensor is true or no longer possible.

    Its arguments are identifiers, and bear the names of the sensor's own: Airflow renders the templates of those when a task
    is started from its trigger. `poll_interval` is in seconds.
    """

    def __init__(  # noqa: PLR0913  the words of a sensor
        self,
        *,
        condition: dict[str, Any],
        job_name: str | None = None,
        job_task_id: str | None = None,
        job_map_index: int | None = None,
        role: str | None = None,
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
        self.role = role
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
            "role": self.role,
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
        from rallypoint.provider.backend_access import open_backend  # noqa: PLC0415  see above

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
            self.log.exception("The trigger of the sensor failed while it watched the job; the traceback follows")
            finding = Finding(found=Found.ERROR, text=f"watching the job failed: {type(error).__name__}: {error}")
        yield TriggerEvent(await asyncio.to_thread(finding_event, finding))

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
        await asyncio.to_thread(_import)
        from rallypoint.provider.sensing.streams import watched  # noqa: PLC0415  it is there by now

        return await watched(self, name)


def _import() -> None:
    """Import what looks at jobs; takes half a second, and longer on a busy machine."""
    import rallypoint.provider.sensing.streams  # noqa: F401, PLC0415  see above


_KINDS: dict[str, type[Condition]] = {
    one.kind: one for one in (HangCondition, ProgressCondition, RendezvousCondition, StateCondition)
}


def read_condition(words: Mapping[str, Any]) -> Condition:
    """Return the condition that the words mean; raises `WireError` where they mean none, `OptionError` for a wrong value."""
    kind = words.get("kind")
    if kind not in _KINDS:
        raise codec.WireError("condition.kind", kind, f"one of {', '.join(sorted(_KINDS))}")
    rest = {word: value for word, value in words.items() if word != "kind"}
    return codec.from_json(_KINDS[kind], rest, path="condition")
