"""Sensors and their triggers on jobs in memory, and an Airflow that is a table."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rallypoint.job import ElasticJob
from rallypoint.provider.sensing.finding import Finding
from rallypoint.provider.sensing.watching import JobConditionTrigger
from tests.provider.fake_backend import FakeBackend
from tests.provider.triggers import Trigger, ending

__all__ = ["Desk", "Watching", "event_of", "finished", "on", "submit"]


@dataclass
class Desk:
    """Airflow as a sensor asks it: what tasks have pushed and which states they are in, by (task, map index)."""

    names: dict[tuple[str, int], Any] = field(default_factory=dict)
    states: dict[tuple[str, int], str] = field(default_factory=dict)

    async def pulled(self, task_id: str, index: int) -> Any:
        return self.names.get((task_id, index))

    async def state(self, task_id: str, index: int) -> str | None:
        return self.states.get((task_id, index))


def on(fake: FakeBackend, sensor: type, desk: Desk | None = None, **arguments: Any) -> Any:
    """A sensor of this type that looks at the fake."""

    class Sensor(sensor):  # type: ignore[misc]
        def open_backend(self):
            return fake

        def ask(self, context):
            return desk or Desk()

    if "job_task_id" not in arguments:
        arguments.setdefault("job_name", "digits")
    return Sensor(task_id="wait", **arguments)


class Watching(JobConditionTrigger):
    """Looks at jobs in memory."""

    def __init__(self, fake: FakeBackend, desk: Desk | None = None, **arguments: Any) -> None:
        if "job_task_id" not in arguments:
            arguments.setdefault("job_name", "digits")
        super().__init__(**{"poll_interval": 0.01, **arguments})
        self.fake, self.desk, self.opened = fake, desk or Desk(), 0

    def open_backend(self):
        self.opened += 1
        return self.fake

    def ask(self):
        return self.desk


async def event_of(trigger: JobConditionTrigger) -> Finding:
    """What its one event says."""
    (event,) = [event async for event in trigger.run()]
    return Finding.from_event(event.payload)


async def submit(fake: FakeBackend) -> None:
    """Have a job of two nodes."""
    job = {"name": "digits", "entrypoint": "train.py", "nodes": 2, "fault_tolerance": {"retry_limit": 0}}
    await fake.submit(fake.plan(ElasticJob.model_validate(job)), owner="try-1")


def finished(fake: FakeBackend) -> FakeBackend:
    """The backend after its job ran to its verdict."""

    async def run():
        await submit(fake)
        await ending(Trigger(fake))

    asyncio.run(run())
    return fake
