"""What a job with several roles promises wherever it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rallypoint.backends.requests import request_resumption, request_suspension
from rallypoint.supervision.record import Phase
from rallypoint.supervision.role_records import Level
from tests.cluster.roles_jobs import SERVER, SIMPLE, TRAINER, roles_job
from tests.cluster.sites import ClusterSite, Site
from tests.waiting import eventually_async

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")


@pytest.mark.sample("local")
async def test_a_driver_ends_while_servers_loop(site: Site) -> None:
    """Servers are ended once all drivers have succeeded, and the job has succeeded."""
    async with roles_job(site, {"driver": SIMPLE, "server": {**SERVER, "total": 2}}) as job:
        await job.run("driver-0", "server-0", "server-1")
        await job.tell("driver-0", "end")
        record = await job.job.over()

    assert (record.phase, record.released) == (Phase.SUCCEEDED, True)
    assert record.conductor is not None
    assert record.conductor.history == ()


@pytest.mark.sample("emulator")
async def test_a_killed_instance_is_started_again_alone(site: Site) -> None:
    """All others keep their processes."""
    async with roles_job(site, {"trainer": TRAINER, "driver": {**SIMPLE, "total": 2}}) as job:
        before = await job.run("driver-0", "driver-1", nodes=2)
        nodes = await job.nodes()
        await job.tell("driver-1", "die")
        after = await job.run("driver-0", "driver-1", nodes=2, but=(before["driver-1"],))
        assert (after["driver-0"], await job.nodes()) == (before["driver-0"], nodes)
        assert await job.steps() == [(Level.INSTANCE, "driver", 1)]
        [step] = (await job.conductor()).history
        assert step.reason == "driver 1 was killed by SIGKILL"


@pytest.mark.sample("emulator")
async def test_two_instances_are_hit_at_once(site: Site) -> None:
    """Each is answered by itself, with its reason; the third keeps its process."""
    async with roles_job(site, {"one": SIMPLE, "two": SIMPLE, "three": SERVER}) as job:
        before = await job.run("one-0", "two-0", "three-0")
        await asyncio.gather(job.tell("one-0", "die"), job.tell("two-0", "fail"))
        after = await job.run("one-0", "two-0", "three-0", but=(before["one-0"], before["two-0"]))
        assert after["three-0"] == before["three-0"]
        await job.until_steps(2)
        assert sorted(await job.steps()) == [(Level.INSTANCE, "one", 0), (Level.INSTANCE, "two", 0)]


@pytest.mark.extended
async def test_a_killed_rank_of_an_elastic_role_disturbs_no_other_role(site: Site) -> None:
    """It recovers within its role: its nodes stay, and the conductor has nothing to do."""
    async with roles_job(site, {"trainer": TRAINER, "driver": SIMPLE}) as job:
        before = await job.run("driver-0", nodes=2)
        nodes = await job.nodes()
        await job.tell_worker(1, "die")
        await job.round(2)
        assert await job.run("driver-0", nodes=2) == before
        assert (await job.nodes(), await job.steps()) == (nodes, [])


@pytest.mark.sample("emulator")
async def test_a_role_with_a_group_restarts_one_container(site: Site) -> None:
    """The kubelet restarts it; the pod and the other container stay, and the restart is counted once."""
    together = [{"name": "pair", "roles": ["driver", "server"]}]
    async with roles_job(site, {"driver": SIMPLE, "server": SERVER}, groups=together) as job:
        before = await job.run("driver-0", "server-0")
        await job.tell("server-0", "fail")
        after = await job.run("driver-0", "server-0", but=(before["server-0"],))
        assert after["driver-0"] == before["driver-0"]
        await job.until_steps(1)
        [step] = (await job.conductor()).history
        assert (step.level, step.role, step.reason) == (Level.INSTANCE, "server", "server 0 exited with code 3")
        assert await job.incarnation("server-0") == "2"
        await job.tell("driver-0", "end")
        record = await job.job.over()

    assert (record.phase, record.released) == (Phase.SUCCEEDED, True)


@pytest.mark.sample("emulator")
async def test_a_lost_node_takes_its_whole_group(site: Site) -> None:
    """All instances of the pod begin their next life in another pod; other groups keep theirs."""
    together = [{"name": "pair", "roles": ["driver", "server"]}]
    two = {"total": 2}
    async with roles_job(site, {"driver": {**SIMPLE, **two}, "server": {**SERVER, **two}}, groups=together) as job:
        every = ("driver-0", "driver-1", "server-0", "server-1")
        before = await job.run(*every)
        await job.lose_pod("driver-1")
        after = await job.run(*every, but=(before["driver-1"], before["server-1"]))
        assert [after[one] == before[one] for one in every] == [True, False, True, False]
        assert sorted(await job.steps()) == [(Level.INSTANCE, "driver", 1), (Level.INSTANCE, "server", 1)]
        assert (await job.incarnation("driver-1"), await job.incarnation("server-1")) == ("2", "2")


@pytest.mark.extended
async def test_two_roles_are_hit_at_once(site: Site) -> None:
    """Each is answered by itself, and the third keeps its process."""
    async with roles_job(site, {"trainer": TRAINER, "one": SIMPLE, "two": SIMPLE, "three": SERVER}) as job:
        before = await job.run("one-0", "two-0", "three-0", nodes=2)
        await asyncio.gather(job.tell("one-0", "die"), job.tell("two-0", "fail"), job.tell_worker(0, "die"))
        after = await job.run("one-0", "two-0", "three-0", nodes=2, but=(before["one-0"], before["two-0"]))
        await job.round(2)
        assert after["three-0"] == before["three-0"]
        assert sorted(await job.steps()) == [(Level.INSTANCE, "one", 0), (Level.INSTANCE, "two", 0)]


@pytest.mark.sample("local")
async def test_a_role_that_fails_too_often_resets_the_job_and_then_fails_it(site: Site) -> None:
    """Instance, role, job: each has its budget, and nothing of the job runs in the end."""
    fields: dict[str, Any] = {"recovery": {"stop_grace_period": "1s", "node_replacements": 1}}
    async with roles_job(site, {"driver": {**SIMPLE, "on_failure": "job"}, "server": SERVER}, **fields) as job:
        before = await job.run("driver-0", "server-0")
        await job.tell("driver-0", "fail")
        await job.run("driver-0", "server-0", but=tuple(before.values()))
        await job.tell("driver-0", "fail")
        record = await job.job.over()
        assert await job.lives() == {}

    assert (record.phase, record.released) == (Phase.FAILED, True)
    assert record.conductor is not None
    assert [(step.level, step.attempt) for step in record.conductor.history] == [(Level.JOB, 1), (Level.NONE, 2)]


@pytest.mark.sample("emulator")
async def test_an_elastic_role_runs_on_the_machine_of_its_group(site: Site) -> None:
    """A lost node of it is replaced on that machine, and the other roles keep their processes."""
    together = [{"name": "pair", "roles": ["trainer", "server"]}]
    roles = {"trainer": {**TRAINER, "instance_resources": {"gpus": 0}}, "server": {**SERVER, "total": 2}, "driver": SIMPLE}
    async with roles_job(site, roles, groups=together) as job:
        before = await job.run("driver-0", "server-0", "server-1", nodes=2)
        await job.round(1)
        assert await job.machines("trainer") == await job.machines("server")
        await site.lose_node(f"{job.job.name}-trainer", 1)
        await job.round(2)
        assert await job.run("driver-0", "server-0", "server-1", nodes=2) == before
        assert await job.machines("trainer") == await job.machines("server")
        assert await job.steps() == []


@pytest.mark.sample("emulator")
async def test_a_drained_pod_is_lost_and_not_failed(site: Site) -> None:
    """Somebody deletes it with its grace: the server ends with code 0, which is no success of it."""
    async with roles_job(site, {"driver": SIMPLE, "server": SERVER}) as job:
        before = await job.run("driver-0", "server-0")
        await job.lose_pod("server-0", grace=5)
        after = await job.run("driver-0", "server-0", but=(before["server-0"],))
        assert after["driver-0"] == before["driver-0"]
        [step] = (await job.conductor()).history
        assert (step.level, step.role, step.lost) == (Level.INSTANCE, "server", True)


@pytest.mark.extended
async def test_another_supervisor_takes_over(site: Site) -> None:
    """The first is killed; under the second all processes go on, and a failure in between is answered once."""
    async with roles_job(site, {"trainer": TRAINER, "driver": {**SIMPLE, "total": 2}}, supervised=False) as job:
        async with job.job.supervised_by_a_process():
            before = await job.run("driver-0", "driver-1", nodes=2)
            nodes = await job.nodes()
        await job.tell("driver-1", "fail")
        job.job.supervise()
        after = await job.run("driver-0", "driver-1", nodes=2, but=(before["driver-1"],))
        assert (after["driver-0"], await job.nodes()) == (before["driver-0"], nodes)
        assert await job.steps() == [(Level.INSTANCE, "driver", 1)]


@pytest.mark.extended
async def test_it_is_suspended_and_resumed(site: Site) -> None:
    """Suspended it has no pods; resumed all of its roles run again."""
    async with roles_job(site, {"trainer": TRAINER, "driver": SIMPLE}) as job:
        before = await job.run("driver-0", nodes=2)
        await request_suspension(job.job.eyes, job.job.name)
        await job.job.until(lambda record: record.phase is Phase.SUSPENDED)
        assert (await job.lives(), await job.nodes()) == ({}, {})
        await request_resumption(job.job.eyes, job.job.name)
        await job.run("driver-0", nodes=2, but=(before["driver-0"],))
        assert await job.steps() == []


@pytest.mark.sample("emulator")
async def test_the_output_of_a_role_is_read_across_its_lives(site: Site) -> None:
    """`rallypoint logs --role` tells every life of each instance, also of one in a group, and follows until the job is over."""
    roles = {"driver": {**SIMPLE, "total": 2}, "one": SERVER, "two": SERVER}
    async with roles_job(site, roles, groups=[{"name": "pair", "roles": ["one", "two"]}]) as job:
        before = await job.run("driver-0", "driver-1", "one-0", "two-0")
        await asyncio.gather(job.tell("driver-1", "fail"), job.tell("two-0", "die"))
        await job.run("driver-0", "driver-1", "one-0", "two-0", but=(before["driver-1"], before["two-0"]))

        await job.until_begun({"[0] driver 0": 1, "[1] driver 1": 2}, "driver")
        await job.until_begun({"driver 1": 2}, "driver", rank=1)
        await job.until_begun({"[0] driver 0": 1, "[1] driver 1": 1}, "driver", tail=1)
        await job.until_begun({"one 0": 1}, "one")
        await job.until_begun({"two 0": 2}, "two")
        following = asyncio.create_task(job.output("driver", follow=True))
        await asyncio.gather(job.tell("driver-0", "end"), job.tell("driver-1", "end"))
        await job.job.over()
        told = await asyncio.wait_for(following, 60.0)
        assert sum(line.endswith("is done") for line in told) == 2, told
        assert sum(" begins, " in line for line in told) == 3, told


@pytest.mark.extended
async def test_an_elastic_role_that_fails_resets_the_job(site: Site) -> None:
    """Once the ladder of the role is exhausted, all roles begin the next attempt of the job, the elastic one included."""
    fields: dict[str, Any] = {"recovery": {"stop_grace_period": "1s", "max_restarts": 0, "node_replacements": 0}}
    trainer = {**TRAINER, "nodes": 1, "on_failure": "job"}
    async with roles_job(site, {"trainer": trainer, "driver": SIMPLE}, **fields) as job:
        before = await job.run("driver-0", nodes=1)
        await job.tell_worker(0, "fail")
        await job.run("driver-0", nodes=1, but=tuple(before.values()))
        assert [(level, role) for level, role, _ in await job.steps()] == [(Level.JOB, "trainer")]
        await job.tell_worker(0, "end")
        await job.tell("driver-0", "end")
        record = await job.job.over()

    assert (record.phase, record.attempt, record.released) == (Phase.SUCCEEDED, 2, True)


@pytest.mark.extended
async def test_an_exception_is_in_the_record(site: Site) -> None:
    """Also where nobody but the kubelet has read what the instance wrote."""
    async with roles_job(site, {"driver": SIMPLE}) as job:
        before = await job.run("driver-0")
        await job.tell("driver-0", "raise")
        await job.run("driver-0", but=tuple(before.values()))
        [step] = (await job.conductor()).history
        assert step.reason == "driver 0 exited with code 1: RuntimeError: as it was told"


@pytest.mark.extended
async def test_each_driver_leaves_a_result(site: Site) -> None:
    """That of the first instance, by the name of the role; elastic and simple roles alike, and no server."""
    said = {"env": {"RESULT": "1"}}
    server = {**SERVER, "env": {**SERVER["env"], **said["env"]}}
    roles = {"trainer": {**TRAINER, "nodes": 1, **said}, "driver": {**SIMPLE, "total": 2, **said}, "server": server}
    async with roles_job(site, roles) as job:
        await job.run("driver-0", "driver-1", "server-0", nodes=1)
        await job.tell_worker(0, "end")
        await job.tell("driver-1", "end")
        await job.tell("driver-0", "end")
        record = await job.job.over()

    assert record.result == {name: {"role": name, "rank": 0} for name in ("trainer", "driver")}


def admitted(policies: list[dict[str, Any]], source: dict[str, str], target: dict[str, str]) -> set[int | str]:
    """Return the ports to which NetworkPolicies let a pod connect, by the labels of both pods; "all" for every port."""

    def fits(selector: dict[str, Any], labels: dict[str, str]) -> bool:
        wanted: dict[str, str] = selector["matchLabels"]
        return wanted.items() <= labels.items()

    selecting = [policy["spec"] for policy in policies if fits(policy["spec"]["podSelector"], target)]
    if not selecting:
        return {"all"}
    found: set[int | str] = set()
    for rule in (rule for spec in selecting for rule in spec["ingress"]):
        if "from" not in rule or any(fits(peer["podSelector"], source) for peer in rule["from"]):
            found |= {port["port"] for port in rule["ports"]} if "ports" in rule else {"all"}
    return found


@pytest.mark.extended
async def test_a_network_policy_admits_the_pods_of_all_roles(place: ClusterSite) -> None:
    """Each pod of the job may connect to each other one; other pods only to the coordinator's port. It ends with the job."""
    path = f"/apis/networking.k8s.io/v1/namespaces/{place.namespace}/networkpolicies"
    roles = {"trainer": TRAINER, "critic": {**TRAINER, "nodes": 1}, "driver": SIMPLE}
    async with roles_job(place, roles, network_policy="on") as job:
        await job.run("driver-0", nodes=2)
        await job.round(1, "critic")
        pods = [pod["metadata"]["labels"] for pod in await place.listed("pods")]
        policies = (await place.ask("GET", path))["items"]

    assert sorted(labels["rallypoint.dev/part"] for labels in pods) == [
        *("coordinator", "coordinator", "directory", "node", "node", "node", "unit")
    ]
    stranger = {"rallypoint.dev/job": "other", "rallypoint.dev/uid": "u", "rallypoint.dev/parent": "other"}
    for target in pods:
        assert all("all" in admitted(policies, source, target) for source in pods)
        of_a_role = "rallypoint.dev/parent" in target
        assert admitted(policies, stranger, target) == ({29600} if of_a_role else set())

    async def gone() -> Any:
        return not (await place.ask("GET", path))["items"]

    await eventually_async(gone, timeout=30.0, why="the policies should end with the job")
