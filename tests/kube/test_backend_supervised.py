"""Jobs of stand-in agents on the emulator, driven by the one loop, while the cluster behaves badly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from rallypoint.backends.contract import HeldError
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.watching.views import HOLDER
from rallypoint.backends.requests import delete, request_deletion
from rallypoint.backends.supervise import supervise
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause, FaultKind
from rallypoint.wire.status import Outcome
from tests.backends.stage import running, verdict
from tests.emulator.options import Options
from tests.emulator.running import running as emulated
from tests.kube.stage import KubernetesStage
from tests.waiting import eventually_async

pytestmark = pytest.mark.live

#: A world of four that heals; graces are those of a slow machine.
FOUR = {
    "nodes": "1:4",
    "recovery": {"node_replacements": 3, "stop_grace_period": 0},
    "fault_tolerance": {"retry_limit": 1, "retry_pause_period": 0, "warmup_grace_period": "1h", "admission_grace_period": "1h"},
}


@pytest.fixture
async def stage(tmp_path, home):
    """A cluster of its own: what goes wrong in it goes wrong for everybody."""
    with emulated(Options()) as cluster:
        place = KubernetesStage(tmp_path, cluster)
        yield place
        cluster.heal()
        await place.close()


class Driven:
    """A job that is supervised, and its last snapshot."""

    def __init__(self, stage, backend, poll=None):
        self.stage, self.backend = stage, backend
        self.snapshot: Any = None
        self.task = asyncio.create_task(supervise(backend, "digits", holder="test", on_turn=self._on_turn, poll=poll))

    def _on_turn(self, snapshot):
        self.snapshot = snapshot

    @property
    def record(self):
        return None if self.snapshot is None else self.snapshot.record

    async def runs(self, nodes=4):
        def all_run():
            assert not self.task.done(), self.task
            alive = [p for p in self.stage.pods() if p["status"].get("phase") == "Running"]
            return self.record is not None and self.record.phase is Phase.RUNNING and len(alive) == nodes + 1

        await eventually_async(all_run, timeout=120, every=0.2)
        self.stage.say(running(self.record, step=1))

    async def until(self, condition, **options):
        def so():
            assert not self.task.done(), self.task
            return self.record is not None and condition(self.record)

        await eventually_async(so, timeout=120, every=0.1, **options)

    async def stop(self):
        self.task.cancel()
        await asyncio.wait([self.task])


@contextlib.asynccontextmanager
async def driven(stage, *, poll=None):
    """Submit a job and supervise it. `poll`: seconds between two looks at another supervisor, by default the backend's."""
    await stage.backend.submit(stage.backend.plan(stage.job(**FOUR)), owner="ann")
    job = Driven(stage, stage.backend, poll)
    try:
        yield job
    finally:
        await job.stop()


def uids(stage):
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stage.pods()}


async def test_a_job_lives_and_ends(stage):
    """Its pods run, its verdict ends it, its last words are kept, and its deletion leaves nothing."""
    async with driven(stage) as job:
        await job.runs()
        for node in range(4):
            stage.end_node(job.record, node, 0)
        stage.say(verdict(job.record, Outcome.SUCCEEDED))
        record = await asyncio.wait_for(asyncio.shield(job.task), 600)

    assert record.phase is Phase.SUCCEEDED
    assert await delete(stage.another(), "digits", holder="test")
    await eventually_async(lambda: not stage.pods())
    assert await stage.backend.names() == ()


async def test_a_lost_pod_is_replaced_and_nobody_else_is_touched(stage, caplog):
    """Under a storm of conflicts and with streams that are cut all the time: one incident, one new pod, four that live."""
    stage.emulator.fault(kind="conflict", share=0.3)
    stage.emulator.fault(kind="cut", seconds=1.0)
    async with driven(stage) as job:
        await job.runs()
        before = uids(stage)
        stage.end_node(job.record, 2, 3)
        await job.until(lambda record: any(s.node == 2 and s.incarnation == 2 and s.seen for s in record.slots))
        await job.runs()
        after = uids(stage)
        (incident,) = job.record.incidents

    kept = {name: uid for name, uid in before.items() if not name.endswith("-n2-1")}
    assert (len(kept), kept.items() <= after.items()) == (4, True)
    assert sum(name.endswith("-n2-2") for name in after) == 1
    assert (incident.cause, incident.culprit.exit_code, incident.culprit.log_tail) == (Cause.NODE, 3, ("the stand-in waits",))


async def test_an_outage_of_the_api_server_judges_nobody(stage, caplog):
    """The supervisor waits, and goes on as if nothing had been; what happened meanwhile is seen afterwards."""
    caplog.set_level(logging.INFO)
    async with driven(stage) as job:
        await job.runs()
        before = uids(stage)
        stage.emulator.fault(kind="outage")
        await eventually_async(lambda: not job.backend._parts.cluster.fresh)
        stage.end_node(job.record, 1, 4)
        await asyncio.sleep(1.0)
        assert job.record.incidents == ()
        stage.emulator.heal()
        await job.until(lambda record: len(record.incidents) == 1)
        assert {k: v for k, v in before.items() if k in uids(stage)}
        assert job.record.attempt == 1


async def test_a_pod_that_is_deleted_from_outside_is_replaced(stage):
    """The record says who did it as far as anybody knows."""
    async with driven(stage) as job:
        await job.runs()
        [name] = [name for name in uids(stage) if name.endswith("-n3-1")]
        stage.ask("DELETE", stage.path("pods", name))
        await job.until(lambda record: len(record.incidents) == 1)
        (incident,) = job.record.incidents

    assert (incident.kind, incident.id.node) == (FaultKind.DELETED, 3)


async def test_preemption_costs_nothing(stage):
    """A more important pod took the room; the node comes back elsewhere, and no budget pays."""
    async with driven(stage) as job:
        await job.runs()
        [name] = [name for name in uids(stage) if name.endswith("-n0-1")]
        stage.emulator.preempt_pod(name=name, namespace=stage.namespace)
        await job.until(lambda record: len(record.incidents) == 1)
        (incident,) = job.record.incidents

    assert (incident.cause, incident.kind) == (Cause.PREEMPTION, FaultKind.PREEMPTED)


def name_holder(stage, holder):
    """Another process writes itself down as the job's supervisor."""
    change = {"metadata": {"annotations": {HOLDER: holder}}}
    path = stage.path("configmaps", names.job_configmap("digits"))
    stage.ask("PATCH", path, change, content="application/merge-patch+json")


def holder_of(stage):
    found = stage.ask("GET", stage.path("configmaps", names.job_configmap("digits")))
    return found["metadata"].get("annotations", {}).get(HOLDER, "")


async def test_a_killed_supervisor_is_followed_by_the_next(stage):
    """Its Lease stands still: it is waited for, then taken over and tidied away; nobody is started again."""
    lease = {"metadata": {"name": names.supervisor_lease("ghost")}, "spec": {"holderIdentity": "ghost"}}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{stage.namespace}/leases"
    await stage.backend.submit(stage.backend.plan(stage.job(**FOUR)), owner="ann")
    stage.ask("POST", leases, lease)
    name_holder(stage, "ghost")
    with pytest.raises(HeldError, match="ghost"):
        async with stage.backend.hold("digits", holder="test"):
            pytest.fail("it was taken from somebody who may live")
    job = Driven(stage, stage.backend, poll=0.5)
    try:
        await job.until(lambda _: job.snapshot.supervising)
        left = [item["metadata"]["name"] for item in stage.ask("GET", leases)["items"]]
        assert left == [names.supervisor_lease(job.record.holder.id)]
    finally:
        await job.stop()


async def test_a_hold_that_is_cancelled_twice_is_given_back(stage):
    """The process lives on for another job, and so does its Lease: the next supervisor must not wait for its end."""
    await stage.backend.submit(stage.backend.plan(stage.job(**FOUR)), owner="ann")
    await stage.backend.submit(stage.backend.plan(stage.job("other", **FOUR)), owner="ann")
    held = asyncio.Event()

    async def supervises() -> None:
        async with stage.backend.hold("digits", holder="first"):
            held.set()
            await asyncio.Event().wait()

    async with stage.backend.hold("other", holder="first"):
        task = asyncio.create_task(supervises())
        await held.wait()
        stage.emulator.fault(kind="latency", verbs=["patch"], resources=["configmaps"], seconds=1.0)
        task.cancel()
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait([task])
        stage.emulator.heal()
        assert holder_of(stage) == ""
        async with stage.another().hold("digits", holder="second"):
            pass


async def test_a_mark_of_this_process_that_was_left_is_no_other_holder(stage):
    """No hold of this process is left, so the process can hold the job again."""
    await stage.backend.submit(stage.backend.plan(stage.job(**FOUR)), owner="ann")
    await stage.backend.submit(stage.backend.plan(stage.job("other", **FOUR)), owner="ann")
    async with stage.backend.hold("other", holder="first"), stage.backend.heartbeat("first") as me:
        name_holder(stage, me.id)
        async with stage.backend.hold("digits", holder="first"):
            assert holder_of(stage) == me.id


async def test_a_supervisor_that_slept_too_long_lets_go(stage):
    """It finds another's name in its place, looks on, and takes the job up again only when that one is gone."""
    async with driven(stage, poll=0.5) as job:
        await job.runs()
        before = uids(stage)
        name_holder(stage, "somebody-else")  # who has no Lease: it is gone by now
        mine = job.record.holder.id
        await eventually_async(lambda: holder_of(stage) == mine)
        await job.until(lambda _: job.snapshot.supervising)
        assert uids(stage) == before
        assert job.record.incidents == ()


@pytest.mark.extended
async def test_a_job_is_deleted_while_everything_is_slow(stage):
    """Zero pods are seen before the record goes."""
    stage.emulator.fault(kind="latency", seconds=0.2)
    async with driven(stage) as job:
        await job.runs()
        await request_deletion(stage.another(), "digits")
        assert await asyncio.wait_for(asyncio.shield(job.task), 600) is None
    assert stage.pods() == []
