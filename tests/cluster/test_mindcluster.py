"""Clocks of profile `mindcluster` that need a pod for which there is no machine: all machines of the cluster are cordoned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from rallypoint.job import ElasticJob
from rallypoint.supervision.record import JobRecord, Phase
from tests.cluster.conftest import NODES
from tests.cluster.jobs import Job, submitted
from tests.cluster.sites import ClusterSite
from tests.emulator.running import Running

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")


@contextlib.contextmanager
def cordoned(emulator: Running) -> Iterator[None]:
    """Let no machine take a pod while the context lasts."""
    for machine in NODES:
        emulator.cordon(name=machine.name)
    try:
        yield
    finally:
        for machine in NODES:
            emulator.uncordon(name=machine.name)


def spec(place: ClusterSite, labels: dict[str, str], **fields: Any) -> ElasticJob:
    """Return a job of the profile with two nodes, whose lost pods cost nothing."""
    return place.job(
        profile="mindcluster",
        labels={"fault-scheduling": "grace", **labels},
        health={"node_lease": "15s"},
        **{"nodes": 2, **fields},
    )


def happened(record: JobRecord, kind: str) -> float:
    """Return when something happened first, on the job's clock."""
    return next(event.at for event in record.history if event.kind == kind)


async def loses(job: Job, emulator: Running, node: int) -> None:
    """Lose a pod; its successor is pending."""
    await job.trains(ranks=2)
    await job.site.lose_node(job.name, node)
    await job.until(lambda record: record.slots[node].incarnation == 2)


@pytest.mark.extended
async def test_pending_rounds_lead_up_to_the_whole_job(place: ClusterSite, emulator: Running) -> None:
    """With pod-rescheduling the replaced pod alone is awaited for so many checks; then all pods are rescheduled, for free."""
    wanted = spec(place, {"pod-rescheduling": "on"}, mindcluster={"pending_rounds": 4, "pending_interval": "1s"})
    async with submitted(place, wanted) as job:
        await job.trains(ranks=2)
        with cordoned(emulator):
            await loses(job, emulator, 1)
            record = await job.until(lambda record: record.attempt == 2)
        await job.trains(ranks=2, attempt=2)
        ended = await job.ends()

    assert happened(record, "resetting") - happened(record, "pods-rescheduled") >= 4.0
    assert any("after 4 checks a replaced pod is still pending" in event.detail for event in record.history)
    assert (ended.phase, len(ended.charges)) == (Phase.SUCCEEDED, 0)


@pytest.mark.extended
async def test_a_pod_that_is_placed_in_time_leads_to_nothing_more(place: ClusterSite, emulator: Running) -> None:
    """The checks end when the replaced pod runs: the job is not restarted."""
    wanted = spec(place, {"pod-rescheduling": "on"}, mindcluster={"pending_rounds": 60, "pending_interval": "1s"})
    async with submitted(place, wanted) as job:
        await job.trains(ranks=2)
        with cordoned(emulator):
            await loses(job, emulator, 1)
        await job.trains(ranks=2, round_=2)
        ended = await job.ends()

    assert (ended.phase, ended.attempt, ended.restarts) == (Phase.SUCCEEDED, 1, 1)


@pytest.mark.extended
async def test_wait_reschedule_timeout_then_a_smaller_world(place: ClusterSite, emulator: Running) -> None:
    """`recover` waits for its pod as long as the annotation says; only then elastic-training forms a smaller world."""
    annotations = {"recover-strategy": "recover,elastic-training", "wait-reschedule-timeout": "30"}
    async with submitted(place, spec(place, {}, annotations=annotations, nodes="1:2")) as job:
        await job.trains(ranks=2)
        with cordoned(emulator):
            await loses(job, emulator, 1)
            status = await job.trains(ranks=1, round_=2)
            lost = max(incident.detected_at for incident in status.incidents)
            formed = max(event.at for event in status.events if event.kind == "round")
        await job.trains(ranks=2, round_=3)
        ended = await job.ends()

    assert 29.5 <= formed - lost < 45.0
    assert (ended.phase, ended.attempt) == (Phase.SUCCEEDED, 1)


@pytest.mark.extended
async def test_wait_reschedule_timeout_then_the_whole_job(place: ClusterSite, emulator: Running) -> None:
    """Where nothing else is configured, recovery is paused when the time is over, and the scheduler restarts the whole job."""
    annotations = {"recover-strategy": "recover", "wait-reschedule-timeout": "30"}
    async with submitted(place, spec(place, {}, annotations=annotations)) as job:
        await job.trains(ranks=2)
        with cordoned(emulator):
            await loses(job, emulator, 1)
            record = await job.until(lambda record: record.attempt == 2)
        await job.trains(ranks=2, attempt=2)
        ended = await job.ends()

    assert 29.5 <= happened(record, "resetting") - happened(record, "pods-rescheduled") < 45.0
    assert (ended.phase, len(ended.charges)) == (Phase.SUCCEEDED, 0)


@pytest.mark.extended
async def test_force_gives_pods_no_grace(place: ClusterSite) -> None:
    """With `fault-scheduling: force` the pods of a restart are deleted at once, whatever their grace is."""
    wanted = spec(place, {"fault-scheduling": "force"}, recovery={"stop_grace_period": "10m"})
    async with submitted(place, wanted) as job:
        await job.trains(ranks=2)
        await job.site.lose_node(job.name, 0)
        record = await job.until(lambda record: record.attempt == 2)
        await job.trains(ranks=2, attempt=2)
        ended = await job.ends()

    assert happened(record, "resuming") - happened(record, "resetting") < 30.0
    assert ended.phase is Phase.SUCCEEDED
