"""The last words of a node, which a pod's log has, do not bring a secret of the job into its record."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rallypoint.backends.contract import ActionError
from rallypoint.backends.requests import submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.job import ElasticJob
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.env import MASKED
from tests.backends.fake import FakeBackend, World

SECRET = "hunter2-of-the-warehouse"


class Dying(FakeBackend):
    """Each node that runs ends at once, and its log quotes the secret."""

    async def observe(self, record: JobRecord) -> Observation:
        for key in self.world.alive(record.name):
            if key[1] >= 0:
                self.world.end(record.name, key, 9)
                node = self.world.jobs[record.name].nodes[key]
                lines = (f"cannot log in with {SECRET}",)
                self.world.jobs[record.name].nodes[key] = dataclasses.replace(node, log_tail=lines)
        return await super().observe(record)


async def test_the_last_words_of_a_node_are_masked() -> None:
    """The record holds them with `***` in the secret's place, and so do all that read the record."""
    record = await supervised(Dying(World(pause=0.005)))

    assert "cannot log in with ***" in record.to_json()
    assert SECRET not in record.to_json()


async def test_an_error_that_quotes_a_value_of_a_node_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    """An API server refuses a pod, and its answer quotes a variable: neither log nor record shows it."""
    world = World(pause=0.005)
    world.failures = [ActionError(f"Pod is invalid: env[0].value: {SECRET}", fatal=True)]

    record = await supervised(FakeBackend(world))

    assert record.phase is Phase.FAILED
    for text in (record.to_json(), caplog.text):
        assert "Pod is invalid: env[0].value: ***" in text
        assert SECRET not in text


async def supervised(backend: FakeBackend) -> JobRecord:
    """Run a job whose environment holds the secret."""
    job = {
        "name": "digits",
        "entrypoint": "train.py",
        "recovery": {"node_replacements": 0},
        "fault_tolerance": {"retry_limit": 0, "failure_grace_period": "0s"},
    }
    made = ElasticJob.model_validate(job)
    role = made.roles[0].model_copy(update={"env": {"PW": SECRET, MASKED: json.dumps([["PW", 0, len(SECRET)]])}})
    await submit_or_adopt(backend, backend.plan(made.model_copy(update={"roles": (role,)})), owner="cli")

    record = await supervise(backend, "digits", holder="test", poll=0.01)

    assert record is not None
    return record
