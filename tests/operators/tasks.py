"""Operators as tests need them: their jobs run in memory, and their Airflow is a word."""

from __future__ import annotations

import asyncio
from typing import Any

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.provider.conduct import conduct
from rallypoint.provider.submission import submit
from rallypoint.wire.status import Outcome, Verdict
from tests.provider.fake_backend import FakeBackend
from tests.provider.records import CULPRIT
from tests.provider.tasks import FakeTask, context

__all__ = ["FAILURE", "Operator", "has_told", "operator", "run_without_collecting"]

FAILURE = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message="no restart is left", culprit=CULPRIT)


class Operator(ElasticTrainingOperator):
    """Runs its jobs in memory; `state` is what Airflow says of the task, `left` the jobs that a supervisor was spawned for."""

    def __init__(self, *, fake, state="running", **kwargs):
        super().__init__(task_id="train", poll_interval=0.01, **kwargs)
        self.fake, self.state, self.left, self.asked = fake, state, [], 0

    def open_backend(self):
        return self.fake

    def spawn_supervisor(self, claim):
        self.left.append(claim.name)

    async def ask_state(self, context):
        self.asked += 1
        if isinstance(self.state, Exception):
            raise self.state
        return self.state


def operator(fake, **kwargs) -> Operator:
    return Operator(fake=fake, **{"entrypoint": "train.py", "fault_tolerance": {"retry_limit": 0}, **kwargs})


def has_told(op: Operator, ti: FakeTask) -> None:
    """Do what Airflow does when it has heard that the task succeeded."""
    for callback in op.on_success_callback:
        callback(context(ti))


def run_without_collecting(fake: FakeBackend, ti: FakeTask, *, seconds: float | None = None) -> None:
    """Drive a task's job to its end, or for some seconds, as a process does that is killed before it takes the result."""
    op = operator(fake)
    job = op.build_job(context(ti))

    async def work(post: Any) -> None:
        await submit(post, job)
        await conduct(post)

    async def run() -> None:
        await asyncio.wait(
            [asyncio.ensure_future(op._work(op._claim(context(ti), job.name), work, context(ti)))], timeout=seconds
        )

    asyncio.run(run())
