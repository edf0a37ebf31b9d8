"""Jobs with several roles on Ray: only what was killed starts again. And what such jobs get of the cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
from typing import Any

import pytest

from rallypoint.backends.ray.access import LEDGER
from rallypoint.supervision.record import Phase
from rallypoint.supervision.role_records import Level
from tests.cluster.roles_jobs import SERVER, SIMPLE, TRAINER, RolesJob, roles_job
from tests.ray.clusters import RayCluster
from tests.ray.sites import RaySite, groups, states
from tests.waiting import eventually_async

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]

JUDGE = textwrap.dedent("""
    from rallypoint.training.roles import current, rpc, serve

    @rpc
    def double(number):
        return 2 * number

    serve().wait()
""")

#: Calls again and again until the file `end` is there; each answer is a line.
ASKER = textwrap.dedent("""
    import os, pathlib, time
    from rallypoint.training.roles import RoleGroup, RolesError, wait_for

    wait_for("judge", timeout=60)
    number, gate = 0, pathlib.Path(os.environ["GATE"]) / "end"
    while not gate.exists():
        try:
            print("asked:", RoleGroup("judge", timeout=10).call("double", number)[0], flush=True)
        except RolesError as error:
            print("error:", error, flush=True)
        number += 1
        time.sleep(0.1)
""")


async def test_a_killed_ledger_stops_no_role(site: RaySite) -> None:
    """The same processes go on, and another ledger knows them; a failure that comes then is answered once."""
    async with roles_job(site, {"trainer": TRAINER, "driver": {**SIMPLE, "total": 2}}) as job:
        before = await job.run("driver-0", "driver-1", nodes=2)
        nodes = await job.nodes()
        first = await kill_ledger(site)
        await job.tell("driver-1", "fail")
        after = await job.run("driver-0", "driver-1", nodes=2, but=(before["driver-1"],))
        assert (after["driver-0"], await job.nodes()) == (before["driver-0"], nodes)
        assert await job.steps() == [(Level.INSTANCE, "driver", 1)]
        assert (await asyncio.to_thread(states, site.namespace))[LEDGER] != first
        await job.until_begun({"driver 0": 1}, "driver", rank=0)


async def kill_ledger(site: RaySite) -> int:
    first = (await asyncio.to_thread(states, site.namespace))[LEDGER]
    os.kill(first, signal.SIGKILL)
    return first


async def test_calls_between_roles_survive_the_ledger(site: RaySite) -> None:
    """The directory of the roles is opened again where running instances know it: also one that starts then is found."""
    command = [site.python, "-u", "-c"]
    asker = {**SIMPLE, "entrypoint": {"command": [*command, ASKER]}}
    judge = {**SIMPLE, "entrypoint": {"command": [*command, JUDGE]}, "driver": False}
    async with roles_job(site, {"asker": asker, "judge": judge}) as job:
        await answered(job, 3)
        await kill_ledger(site)
        await job.lose_pod("judge-0")
        before = len(await answers(job))
        await answered(job, before + 3)
        (site.gate / "end").touch()
        record = await job.job.over()

    assert record.phase is Phase.SUCCEEDED
    assert [(incident.cause.value, incident.reason.partition(" (")[0]) for incident in record.incidents] == [
        ("node", "judge 0 was lost with its host")
    ]


async def answers(job: RolesJob) -> list[str]:
    return [line for line in await job.output("asker") if line.startswith("asked:")]


async def answered(job: RolesJob, number: int) -> None:
    async def there() -> Any:
        return len(await answers(job)) >= number

    await eventually_async(there, timeout=60.0, every=0.2, why=f"{number} calls should be answered")


async def test_a_lost_coordinator_stops_no_role(site: RaySite) -> None:
    """Another coordinator of the elastic role finds the workers of the same round; the conductor has nothing to do."""
    async with roles_job(site, {"trainer": TRAINER, "driver": SIMPLE}) as job:
        before = await job.run("driver-0", nodes=2)
        nodes = await job.nodes()
        await site.lose_coordinator(f"{job.job.name}-trainer")

        async def replaced() -> Any:
            status = await job.job.eyes.units(job.job.name).jobs.status(f"{job.job.name}-trainer")
            return status is not None and status.fence.term == 2

        await eventually_async(replaced, timeout=60.0, every=0.2, why="another coordinator should publish")
        assert await job.run("driver-0", nodes=2) == before
        assert (await job.nodes(), await job.steps()) == (nodes, [])


async def test_a_lost_ray_node_takes_its_instances(site: RaySite, cluster: RayCluster) -> None:
    """They begin their next life on another Ray node, within the same placement group; what ran elsewhere goes on."""
    cluster.add()
    together = [{"name": "pair", "roles": ["one", "server"]}]
    try:
        roles = {"one": {**SIMPLE, "total": 2}, "server": {**SERVER, "total": 2}}
        async with roles_job(site, roles, groups=together) as job:
            every = ("one-0", "one-1", "server-0", "server-1")
            before = await job.run(*every)
            base = f"{await site.uid(job.job.name)}-base"
            lost = next(node for node in cluster.nodes if node.node_id == at(base, 0))
            moved = {one for one in every if at(base, int(one[-1])) == lost.node_id}
            cluster.lose(lost)
            after = await job.run(*every, but=tuple(before[one] for one in moved))
            assert {one for one in every if after[one] != before[one]} == moved
            record = await job.job.record()
            assert all(incident.cause.value == "node" for incident in record.incidents)
            assert len(record.incidents) == len(moved)
    finally:
        while len(cluster.nodes) > 2:
            cluster.lose(cluster.nodes[-1])
        while len(cluster.nodes) < 2:
            cluster.add()


def at(group: str, bundle: int) -> str:
    """Return the Ray node that holds a bundle."""
    from ray.util.placement_group import placement_group_table

    found = next(one for one in placement_group_table().values() if one["name"] == group and one["state"] != "REMOVED")
    return str(found["bundles_to_node_id"][bundle])


async def test_roles_that_cannot_be_placed_say_what_is_missing(site: RaySite) -> None:
    """Nothing of any role starts, no retry is charged, and the job ends after `master.create_timeout`."""
    needy = {**SIMPLE, "instance_resources": {"gpus": 3}}
    async with roles_job(site, {"trainer": TRAINER, "driver": SIMPLE, "needy": needy}, master={"create_timeout": "6s"}) as job:
        waiting = await job.job.until(lambda record: bool(record.waits_for))
        record = await job.job.over()
        assert await job.lives() == {}

    told = "a node needs GPU 3, but the largest node of the cluster has GPU 0"
    assert told in waiting.waits_for
    assert (record.phase, record.retries) == (Phase.FAILED, 0)
    assert record.verdict is not None
    assert "was not ready within 6 s (master.create_timeout)" in record.verdict.message
    assert told in record.verdict.message


async def test_two_jobs_with_roles_never_hold_half_of_each_others_resources(site: RaySite) -> None:
    """The second has no bundle at all while the first runs; then it has all of them at once."""
    big = {**SIMPLE, "instance_resources": {"gpus": 0, "cpu": "5"}, "total": 2}
    async with roles_job(site, {"big": big}, name="first") as first:
        await first.run("big-0", "big-1")
        async with roles_job(site, {"big": big, "more": SIMPLE}, name="second") as second:
            waiting = await second.job.until(lambda record: bool(record.waits_for))
            base = f"{await site.uid('second')}-base"
            assert held(base) == 0
            (site.gate / "big-0").write_text("end")
            (site.gate / "big-1").write_text("end")
            assert (await first.job.over()).phase is Phase.SUCCEEDED
            await second.run("big-0", "big-1", "more-0")
            record = await second.job.record()

    assert "need CPU 11, but" in waiting.waits_for
    assert (record.retries, record.incidents, record.waits_for) == (0, (), "")


def held(group: str) -> int:
    """Return how many bundles of a placement group hold their resources."""
    from ray.util.placement_group import placement_group_table

    assert group in groups()
    found = next(one for one in placement_group_table().values() if one["name"] == group)
    return sum(bool(node) for node in (found["bundles_to_node_id"] or {}).values())


async def test_roles_of_a_group_share_a_device(site: RaySite, cluster: RayCluster) -> None:
    """Instance k of both roles sees the same device, and another one than instance 1 - k."""
    node = cluster.add(num_gpus=2)
    script = "import os, time; print('sees', os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(3600)"
    half = {**SIMPLE, "total": 2, "instance_resources": {"gpus": "0.5"}, "entrypoint": {"command": [site.python, "-c", script]}}
    together = [{"name": "pair", "roles": ["actor", "critic"]}]
    try:
        async with roles_job(site, {"actor": half, "critic": half}, groups=together) as job:
            found: dict[str, list[str]] = {}

            async def seen() -> Any:
                found.update({role: await job.output(role) for role in ("actor", "critic")})
                return all(len(lines) == 2 for lines in found.values())

            await eventually_async(seen, timeout=60.0, every=0.2, why=lambda: f"all should see a device: {found}")
            assert sorted(found["actor"]) == sorted(found["critic"])
            assert {line.partition("sees ")[2] for line in found["actor"]} == {"0", "1"}
    finally:
        cluster.lose(node)
