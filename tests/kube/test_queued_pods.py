"""Plain pods in a queue of Kueue, for real: which keeps ended pods by its finalizer until others take their place."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from rallypoint.backends.contract import HeldError
from rallypoint.backends.kubernetes.rbac import QUEUES, SUPERVISOR, allows
from rallypoint.backends.requests import delete, request_resumption, request_suspension
from rallypoint.backends.supervise import supervise
from rallypoint.supervision.record import Phase
from rallypoint.wire.status import Outcome
from tests.backends.stage import running, verdict
from tests.emulator.controllers.api import Api
from tests.emulator.controllers.kueue import Queues
from tests.emulator.options import Options
from tests.emulator.running import running as emulated
from tests.kube.stage import KubernetesStage
from tests.waiting import eventually_async

pytestmark = [pytest.mark.live, pytest.mark.may_block("what happens on the cluster is brought about in the test's own loop")]

#: Nothing is deleted by force: whoever waits for what Kueue keeps waits for ever.
POLICIES = {
    "fault_tolerance": {
        "retry_limit": 1,
        "retry_pause_period": 0,
        "failure_grace_period": 0,
        "forceful_deletion_grace_period": "1h",
        "warmup_grace_period": "1h",
        "admission_grace_period": "1h",
    },
    "recovery": {"node_replacements": 0, "stop_grace_period": 0},
}


@pytest.fixture
async def stage(tmp_path, home):
    """A cluster with a queue that has room for one job of two nodes and its coordinator."""
    with emulated(Options(controllers=("kueue",))) as cluster:
        place = KubernetesStage(tmp_path, cluster)
        async with Api(cluster.url, cluster.admin_token) as api:
            queues = Queues(api)
            await queues.ready()
            await queues.quota("team", pods=3)
        yield place
        await place.close()


class Job:
    """A supervised job of two nodes in the queue."""

    def __init__(self, stage, name):
        self.stage, self.name = stage, name
        self.snapshot: Any = None
        self.backend = stage.another()
        self.task = asyncio.create_task(supervise(self.backend, name, holder="test", on_turn=self._on_turn))

    def _on_turn(self, snapshot):
        self.snapshot = snapshot

    @property
    def record(self):
        return None if self.snapshot is None else self.snapshot.record

    def pods(self):
        return [pod for pod in self.stage.pods() if pod["metadata"]["labels"]["rallypoint.dev/job"] == self.name]

    async def until(self, so):
        def why():
            told = [] if self.record is None else [f"{h.kind}: {h.detail}" for h in self.record.history]
            pods = [
                (p["metadata"]["name"], p["status"].get("phase"), p["metadata"].get("deletionTimestamp")) for p in self.pods()
            ]
            return f"{told}, {pods}"

        await eventually_async(lambda: self.record is not None and so(self.record), timeout=60, every=0.1, why=why)

    async def runs(self, attempt=1):
        def all_run():
            alive = [
                p for p in self.pods() if p["status"].get("phase") == "Running" and not p["metadata"].get("deletionTimestamp")
            ]
            return self.record.phase is Phase.RUNNING and self.record.attempt == attempt and len(alive) == 3

        await self.until(lambda _: all_run())
        self.stage.say(running(self.record, step=1))

    async def over(self):
        return await asyncio.wait_for(asyncio.shield(self.task), 300)

    def kept(self):
        """The pods that Kueue keeps."""
        return [pod["metadata"]["name"] for pod in self.pods() if pod["metadata"].get("finalizers")]


@contextlib.asynccontextmanager
async def submitted(stage, name):
    for end in stage.ends.iterdir():  # of another job's pods, which have the same numbers
        end.unlink()
    backend = stage.another()
    await backend.submit(backend.plan(stage.job(name, nodes=2, queue="team", **POLICIES)), owner="ann")
    job = Job(stage, name)
    try:
        yield job
    finally:
        job.task.cancel()
        await asyncio.wait([job.task])


async def test_a_reset_does_not_wait_for_pods_that_kueue_keeps(stage):
    """The failed attempt's pods are kept until the next one's take their place; the quota is held meanwhile, and free after."""
    async with submitted(stage, "digits") as job:
        await job.runs()
        stage.say(verdict(job.record, Outcome.FAILED))
        stage.end_node(job.record, 1, 3)
        await job.runs(2)
        assert not any("-a1-" in name for name in job.kept())
        for node in (0, 1):
            stage.end_node(job.record, node, 0)
        stage.say(verdict(job.record, Outcome.SUCCEEDED))
        record = await job.over()
        assert (record.phase, record.retries) == (Phase.SUCCEEDED, 1)
        await eventually_async(lambda: job.kept() == [])
        async with submitted(stage, "next") as other:
            await other.runs()
        assert await delete(stage.another(), "digits", holder="test")
        await eventually_async(lambda: job.pods() == [])


async def test_the_end_of_a_failed_job_frees_its_quota(stage):
    """Nobody takes the place of the pod that failed: Kueue is told so, and lets go of the group."""
    async with submitted(stage, "digits") as job:
        for attempt in (1, 2):
            await job.runs(attempt)
            stage.say(verdict(job.record, Outcome.FAILED))
            stage.end_node(job.record, 1, 3)
            await job.until(lambda record, attempt=attempt: record.attempt > attempt or record.finished)
        assert (await job.over()).phase is Phase.FAILED
        await eventually_async(lambda: job.kept() == [])
        async with submitted(stage, "next") as other:
            await other.runs()


async def test_a_suspended_job_gives_its_quota_to_others(stage):
    """And has it back when they are over and it is resumed."""
    async with submitted(stage, "digits") as job:
        await job.runs()
        await request_suspension(job.backend, "digits")
        await job.until(lambda record: record.phase is Phase.SUSPENDED)
        async with submitted(stage, "next") as other:
            await other.runs()
            await request_resumption(job.backend, "digits")
            await job.until(lambda record: record.attempt == 2 and len(job.pods()) == 3)
            assert {pod["status"].get("phase") for pod in job.pods()} == {"Pending"}
            with contextlib.suppress(HeldError):
                await delete(other.backend, "next", holder="test", timeout=300)
        await job.runs(2)
        assert job.record.retries == 0


def test_the_verb_is_granted_where_it_is_asked_for():
    """`manifests rbac --queues` prints it; the Role without it has no right to change pods."""
    right = {"group": "", "resource": "pods", "verb": "patch"}

    assert (allows(SUPERVISOR, **right), allows(QUEUES, **right)) == (False, True)
