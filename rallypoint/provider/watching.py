"""Looking at a job without touching it, for sensors: once from a worker, or until something is so from the triggerer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rallypoint.backends.contract import Backend
from rallypoint.backends.site import Site
from rallypoint.provider.conditions import Condition, Finding, Found, judge
from rallypoint.provider.doors import open_backend
from rallypoint.provider.place import site_words

__all__ = ["JobConditionTrigger", "look"]


async def look(backend: Backend, name: str, condition: Condition) -> Finding:
    """Judge the job as it is now; one that does not exist may still be submitted."""
    stored = await backend.load(name)
    if stored is None:
        return Finding(found=Found.WAITING, text=f"there is no job {name} yet")
    return judge(condition, stored.record, await backend.status(name))


class JobConditionTrigger(BaseTrigger):
    """Waits until a job is where a sensor expects it, or cannot come there any more; `poll_interval` in seconds."""

    def __init__(
        self,
        *,
        backend: str,
        home: str,
        name: str,
        condition: dict[str, Any],
        poll_interval: float,
        namespace: str = "",
        kubeconfig: str = "",
        context: str = "",
    ) -> None:
        super().__init__()
        self.site = Site(kind=backend, home=home, namespace=namespace, kubeconfig=kubeconfig, context=context)
        self.name = name
        self.condition = Condition(**condition)
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return this class's path and its arguments: identifiers only."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **site_words(self.site),
            "name": self.name,
            "condition": dataclasses.asdict(self.condition),
            "poll_interval": self.poll_interval,
        }

    def open_backend(self) -> Backend:
        """Return the backend that holds the job."""
        return open_backend(self.site)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event whose payload is a `Finding`."""
        backend = await asyncio.to_thread(self.open_backend)
        try:
            async with backend.changes(self.name) as changes:
                while (finding := await look(backend, self.name, self.condition)).found is Found.WAITING:
                    await changes.wait(self.poll_interval)
            yield TriggerEvent(finding.to_event())
        finally:
            await backend.close()
