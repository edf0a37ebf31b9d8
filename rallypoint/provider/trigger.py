"""The trigger of a deferred training task, which runs the supervision loop in the triggerer's event loop.

Airflow imports this module in that event loop, where all other triggers wait meanwhile. So it imports little: everything that
supervises is in `deferred.py`, which is imported in a thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rallypoint.provider.claim import Claim, End, Ending
from rallypoint.provider.delivery import ending_event
from rallypoint.provider.task_state import prepare, task_state

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["ElasticTrainingTrigger"]


#: Tasks that continue after their trigger has ended; the event loop has only weak references.
_AT_WORK: set[asyncio.Future[None]] = set()


class ElasticTrainingTrigger(BaseTrigger):
    """Supervises one job to its end, and sends one event with the ending.

    Its arguments are those of a `Claim`; Airflow stores them as plain text, and they are identifiers only. A triggerer that
    stops, or hands the trigger to another, leaves the job running: the next one finds it and takes over.
    """

    def __init__(self, **claim: Any) -> None:
        super().__init__()
        self.claim = Claim(**claim)

    @classmethod
    def of(cls, claim: Claim) -> ElasticTrainingTrigger:
        """Return the trigger that waits for what `claim` names."""
        return cls(**dataclasses.asdict(claim))

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return this class's path and the claim."""
        return f"{type(self).__module__}.{type(self).__qualname__}", dataclasses.asdict(self.claim)

    def open_backend(self) -> Backend:
        """Return the backend that holds the job, its connection read anew. Blocks; called in a thread."""
        from rallypoint.provider import backend_access  # noqa: PLC0415  see above

        return backend_access.open_backend(self.claim.place)

    def spawn_supervisor(self, claim: Claim) -> None:
        """Leave a supervisor behind that sees to the job without the triggerer. Blocks; called in a thread."""
        from rallypoint.provider import backend_access  # noqa: PLC0415  see above

        backend_access.spawn_supervisor(claim)

    async def ask_state(self) -> str | None:
        """Return the present state of the task that waits for this trigger."""
        return None if self.task_instance is None else await task_state(self.task_instance)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event whose payload is an `Ending`, whatever happens, except when the trigger is cancelled."""
        preparation = asyncio.ensure_future(asyncio.to_thread(prepare))
        try:
            await asyncio.to_thread(_import)
            from rallypoint.provider.deferred import attend  # noqa: PLC0415  it is there by now

            ending = await attend(self)
        except Exception as error:
            self.log.exception("The supervision of job %s failed; the traceback follows", self.claim.name)
            text = f"supervision of job {self.claim.name} failed: {type(error).__name__}: {error}"
            ending = Ending(end=End.ERROR, name=self.claim.name, text=text)
        try:
            await preparation
        except Exception as error:  # noqa: BLE001  it only saves time later
            self.log.warning(
                "The trigger cannot import the modules that it needs to cancel the job if the task is stopped: %s", error
            )
        yield TriggerEvent(await asyncio.to_thread(ending_event, ending))

    async def on_kill(self) -> None:
        """Cancel the job if the task was stopped and this try still owns the job.

        Airflow calls this also when a stalled triggerer wakes up and another has its triggers, and after a clear when the next
        try has the job already; neither may cost a healthy job.
        """
        # Airflow cancels this very call again with each of its syncs, about once a second: the work goes on behind a shield.
        work = asyncio.ensure_future(self._kill())
        _AT_WORK.add(work)
        work.add_done_callback(_AT_WORK.discard)
        await asyncio.shield(work)

    async def _kill(self) -> None:
        await asyncio.to_thread(_import)
        from rallypoint.provider.deferred import give_up  # noqa: PLC0415  it is there by now

        await give_up(self)


def _import() -> None:
    """Import the supervision modules, which takes half a second or longer."""
    import rallypoint.provider.deferred  # noqa: F401, PLC0415  see above
