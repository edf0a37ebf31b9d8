"""Triggers as tests need them: their jobs run in memory, and their Airflow is a word."""

from __future__ import annotations

import asyncio
import dataclasses

from rallypoint.job import ElasticJob
from rallypoint.provider.claim import Claim, Ending
from rallypoint.provider.trigger import ElasticTrainingTrigger
from tests.provider.fake_backend import FakeBackend

__all__ = ["CLAIM", "Trigger", "ending", "submitted"]

CLAIM = Claim(
    backend="local",
    home="",
    name="digits",
    owner="try-1",
    poll_interval=0.01,
    get_logs=True,
    deadline=None,
    on_kill_action="delete_job",
)


class Trigger(ElasticTrainingTrigger):
    """Drives jobs in memory; `state` is what Airflow says of the task."""

    def __init__(self, fake, state="deferred", **changes):
        super().__init__(**dataclasses.asdict(dataclasses.replace(CLAIM, **changes)))
        self.fake, self.state, self.left = fake, state, []
        self.answers = asyncio.Event()
        self.answers.set()

    def open_backend(self):
        if isinstance(self.fake, Exception):
            raise self.fake
        return self.fake

    def spawn_supervisor(self, claim):
        self.left.append(claim.name)

    async def ask_state(self):
        await self.answers.wait()
        return self.state


async def submitted(fake: FakeBackend, owner: str = "try-1") -> FakeBackend:
    """The backend with the job that an operator has submitted."""
    job = ElasticJob.model_validate({"name": "digits", "entrypoint": "train.py", "fault_tolerance": {"retry_limit": 0}})
    await fake.submit(fake.plan(job), owner=owner)
    return fake


async def ending(trigger) -> Ending:
    """What its one event says."""
    (event,) = [event async for event in trigger.run()]
    return Ending.from_event(event.payload)
