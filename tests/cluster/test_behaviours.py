"""What a job promises wherever it runs: on this machine, on the emulated cluster, and with `-m cluster` on a real one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rallypoint.backends.contract import Backend, LogLine
from rallypoint.backends.requests import request_resumption, request_suspension
from rallypoint.backends.site import KUBERNETES
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause, Rung
from rallypoint.wire.status import JobStatus, Outcome
from tests.cluster.jobs import submitted
from tests.cluster.sites import Site
from tests.waiting import PATIENCE, eventually_async

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")


def pids(status: JobStatus) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in status.ranks}


async def lines_until(backend: Backend, name: str, wanted: set[str]) -> list[LogLine]:
    """Follow a job's logs until all of the wanted texts were there."""
    found: list[LogLine] = []
    async for line in backend.logs(name, follow=True):
        found.append(line)
        if wanted <= {known.text for known in found}:
            return found
    raise AssertionError(f"the job was over before it wrote {wanted}: {found}")


@pytest.mark.sample("emulator")
async def test_a_job_ends_well(site: Site) -> None:
    """Its ranks are heard while it runs; its record tells how it went; its deletion leaves nothing."""
    async with submitted(site, site.job(nodes=2)) as job:
        begun = {f"round 1: rank {rank} of 2 begins" for rank in range(2)}
        lines = await asyncio.wait_for(lines_until(job.eyes, job.name, begun), 60 * PATIENCE)
        assert {line.rank for line in lines if line.text in begun} == {0, 1}
        await job.trains(ranks=2, beyond=3)
        record = await job.ends()

    assert (record.phase, record.released, record.retries) == (Phase.SUCCEEDED, True, 0)
    assert record.verdict is not None
    assert record.verdict.outcome is Outcome.SUCCEEDED
    assert ([a.number for a in record.attempts], record.incidents) == ([1], ())
    assert (record.progress.step or 0) > 3


async def test_a_killed_worker_is_started_again_in_place(site: Site) -> None:
    """All workers start again in the next round, in the nodes that they were in; the record names the culprit."""
    async with submitted(site, site.job(nodes=2)) as job:
        await job.trains(ranks=2)
        nodes = await site.nodes(job.name)
        await job.kill(rank=1)
        await job.trains(ranks=2, round_=2)
        assert await site.nodes(job.name) == nodes
        hosts = await job.hosts()
        record = await job.ends()

    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)
    [incident] = record.incidents
    assert (incident.cause, incident.rung) == (Cause.PROCESS, Rung.RESTART_WORKERS)
    assert incident.culprit is not None
    assert (incident.culprit.rank, incident.culprit.node, incident.culprit.signal) == (1, 1, 9)
    if site.where.kind == KUBERNETES:  # on one machine the nodes are known by their address
        assert incident.culprit.host == hosts[1]
    assert incident.healed_at is not None


@pytest.mark.sample("emulator")
async def test_a_lost_node_is_replaced(site: Site) -> None:
    """Its slot is filled anew and training goes on in a new round; the other node is the one that it was."""
    async with submitted(site, site.job(nodes="1:2")) as job:
        await job.trains(ranks=2)
        before = await site.nodes(job.name)
        await site.lose_node(job.name, 1)
        status = await job.trains(ranks=2, round_=2)
        after = await site.nodes(job.name)
        record = await job.ends()

    assert [(member.node, member.incarnation) for member in status.world] == [(0, 1), (1, 2)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)
    [lost] = [incident for incident in record.incidents if incident.cause is Cause.NODE]
    assert lost.id.node == 1
    assert lost.healed_at is not None


@pytest.mark.sample("emulator")
async def test_a_lost_coordinator_stops_nobody(site: Site) -> None:
    """The same workers go on under the next term, in the same round; it costs nothing."""
    async with submitted(site, site.job(nodes=2)) as job:
        before = await job.trains(ranks=2)
        await site.lose_coordinator(job.name)
        await job.until(lambda record: record.term == 2)
        after = await job.trains(ranks=2, beyond=max(rank.step or 0 for rank in before.ranks))
        assert (pids(after), after.fence.round, after.fence.term) == (pids(before), 1, 2)
        record = await job.ends()

    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)
    assert [incident.cause for incident in record.incidents] == [Cause.COORDINATOR]


@pytest.mark.sample("local")
async def test_a_failing_script_spends_its_budgets(site: Site) -> None:
    """It is started again as often as its budgets say, and no more; the record keeps the culprit's last words."""
    spec = site.job(env={"MODE": "fail"}, recovery={"max_restarts": 1}, fault_tolerance={"retry_limit": 1})
    async with submitted(site, spec) as job:
        record = await job.over()

    assert (record.phase, record.released, record.retries) == (Phase.FAILED, True, 1)
    assert record.verdict is not None
    assert record.verdict.outcome is Outcome.FAILED
    faults = [incident for incident in record.incidents if incident.cause is Cause.PROCESS]
    assert [incident.id.attempt for incident in faults] == [1, 1, 2, 2]
    for incident in faults:
        assert incident.culprit is not None
        assert incident.culprit.exit_code == 1
    culprit = faults[-1].culprit
    assert culprit is not None
    assert any("the loss is not a number" in line for line in (*culprit.log_tail, culprit.error or ""))


@pytest.mark.sample("emulator")
async def test_it_is_suspended_resumed_and_deleted(site: Site) -> None:
    """Suspended it has no nodes and pays nothing; resumed it trains again; deleted while it trains it leaves nothing."""
    async with submitted(site, site.job(nodes=2)) as job:
        first = await job.trains(ranks=2)
        await request_suspension(job.eyes, job.name)
        await job.until(lambda record: record.phase is Phase.SUSPENDED)
        assert await site.nodes(job.name) == {}
        await request_resumption(job.eyes, job.name)
        again = await job.trains(ranks=2, attempt=first.fence.attempt + 1)
        record = await job.record()

    assert (record.phase, record.retries, record.attempt) == (Phase.RUNNING, 0, again.fence.attempt)
    assert [incident.cause for incident in record.incidents if incident.cause is not Cause.SCALE] == []


@pytest.mark.sample("local")
async def test_another_supervisor_takes_over(site: Site) -> None:
    """One that is killed is followed by another; the same workers go on in the same round, and end under the second."""
    async with submitted(site, site.job(nodes=2), supervised=False) as job:
        async with job.supervised_by_a_process():
            before = await job.trains(ranks=2)
            first = await job.record()
        job.supervise()
        second = await job.until(lambda record: record.holder is not None and record.holder != first.holder)
        after = await job.trains(ranks=2, beyond=max(rank.step or 0 for rank in before.ranks))
        assert (pids(after), after.fence.round) == (pids(before), 1)
        record = await job.ends()

    assert second.attempt == 1
    assert (record.phase, record.retries, record.incidents) == (Phase.SUCCEEDED, 0, ())


@pytest.mark.sample("emulator")
async def test_what_one_reader_was_told_the_next_is_not_told_again(site: Site) -> None:
    """Reading goes on after the cursor of any line, of one rank or of all, while the job runs."""
    async with submitted(site, site.job(nproc_per_node=2)) as job:
        begun = {f"round 1: rank {rank} of 2 begins" for rank in range(2)}
        lines = await asyncio.wait_for(lines_until(job.eyes, job.name, begun), 60 * PATIENCE)
        mine = [line async for line in job.eyes.logs(job.name, rank=1)]
        assert [line.text for line in mine] == ["round 1: rank 1 of 2 begins"]
        await job.kill(rank=0)
        again = {f"round 2: rank {rank} of 2 begins" for rank in range(2)}

        async def further() -> Any:
            now = [line.text async for line in job.eyes.logs(job.name, cursor=str(lines[-1].cursor))]
            assert not begun & set(now)
            return again <= set(now)

        await eventually_async(further, every=0.2)
