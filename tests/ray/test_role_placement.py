"""What a job with several roles asks of a Ray cluster, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.ray.placement import FILE, Placement
from rallypoint.backends.ray.roles import child, draw_roles, host_devices
from rallypoint.job import load_job
from rallypoint.wire import codec
from rallypoint.wire.role_plans import role_plan, role_plans

TRAINER: dict[str, Any] = {"entrypoint": "train.py", "nodes": "2:3", "resources": {"cpu": "1"}}
ROLLOUT: dict[str, Any] = {"launch": "simple", "entrypoint": "rollout.py", "total": 4, "per_group": 2, "driver": False}
JUDGE: dict[str, Any] = {"launch": "simple", "entrypoint": "judge.py"}


def drawn(roles: dict[str, dict[str, Any]], **fields: Any) -> Blueprint:
    job = load_job({"name": "rl", "roles": roles, **fields}, based=False)
    return draw_roles(job, namespace="team", runtime_env={})


def placed(roles: dict[str, dict[str, Any]], **fields: Any) -> Placement:
    return codec.loads(Placement, drawn(roles, **fields).attached[FILE])


def asks(placement: Placement) -> list[dict[str, float]]:
    return [dict(bundle.ask) for bundle in placement.group]


def test_the_smallest_world_of_all_roles_is_one_group():
    """A bundle for each node of the trainer and for each group of instances; the third node has a group of its own."""
    blueprint = drawn({"trainer": TRAINER, "rollout": ROLLOUT, "judge": JUDGE})

    groups = [item for item in blueprint.objects if item["kind"] == "PlacementGroup"]
    actors = [(item["name"], item["placement_group"]) for item in blueprint.objects if item["kind"] == "Actor"]
    assert [(group["name"], group["bundles"]) for group in groups] == [
        ("UID-base", [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 1.0}]),
        ("UID-trainer-1-2-1", [{"CPU": 1.0}]),
    ]
    assert actors == [
        ("UID-trainer-1-trainer-0-1", "UID-base"),
        ("UID-trainer-1-trainer-1-1", "UID-base"),
        ("UID-trainer-1-trainer-2-1", "UID-trainer-1-2-1"),
        ("UID-0-rollout-0-1", "UID-base"),
        ("UID-0-rollout-1-1", "UID-base"),
        ("UID-0-judge-0-1", "UID-base"),
    ]


def test_groups_with_one_name_have_bundles_of_their_own():
    """Also a role that is in no group and has that name."""
    half = {**JUDGE, "instance_resources": {"cpu": "1", "gpus": "0.5"}}
    names = ("a", "b", "c", "d", "pair")
    groups = [{"name": "pair", "roles": ["a", "b"]}, {"name": "pair", "roles": ["c", "d"]}]

    placement = placed(dict.fromkeys(names, half), groups=groups)

    both = {"CPU": 2.0, "GPU": 1.0}
    assert sorted(asks(placement), key=lambda ask: ask["CPU"]) == [{"CPU": 1.0, "GPU": 0.5}, both, both]
    assert set(placement.hosts) == {"pair", "pair-g", "pair-g-g"}


def test_an_elastic_role_has_its_bundles_in_the_group_of_the_job():
    """As a job of its own, from the first bundle of the role on."""
    blueprint = drawn({"judge": JUDGE, "trainer": {**TRAINER, "host_ignore_list": ["a1"]}})
    placement = codec.loads(Placement, blueprint.attached[FILE])

    job, plan, its = child(blueprint.job, blueprint.plan, role_plan(blueprint.plan, "trainer"), placement, base="5f1c")

    assert (job.name, plan.name, plan.min_nodes, plan.max_nodes) == ("rl-trainer", "rl-trainer", 2, 3)
    assert (its.base, its.first, its.nodes, dict(its.bundle), its.exclude) == ("5f1c", 1, 2, {"CPU": 1.0}, ("a1",))
    assert its.group == placement.group
    assert [bundle.exclude for bundle in its.group] == [(), ("a1",), ("a1",)]


def test_a_group_of_roles_has_one_bundle_for_each_group():
    """It is the sum of what its actors ask for; two halves are one device."""
    half = {"instance_resources": {"gpus": "0.5", "memory": "64Mi"}}
    roles = {"actor": {**JUDGE, **half, "total": 2}, "critic": {**JUDGE, **half, "total": 2}}
    placement = placed(roles, groups=[{"name": "pair", "roles": ["actor", "critic"]}])

    assert asks(placement) == [{"memory": 2.0 * 64 * 2**20, "GPU": 1.0}] * 2
    assert dict(placement.hosts["pair"].ask) == {"memory": 2.0 * 64 * 2**20, "GPU": 1.0}


def test_an_elastic_role_and_a_simple_one_share_a_device():
    """Each actor asks for its half of the one device of the bundle."""
    roles = {
        "trainer": {"entrypoint": "t.py", "nodes": 2, "instance_resources": {"gpus": "0.5", "cpu": "1"}},
        "rollout": {**JUDGE, "total": 2, "instance_resources": {"gpus": "0.5", "cpu": "2"}},
    }
    placement = placed(roles, groups=[{"name": "pair", "roles": ["trainer", "rollout"]}])

    assert asks(placement) == [{"CPU": 3.0, "GPU": 1.0}] * 2
    assert dict(placement.elastic["trainer"].ask) == {"CPU": 1.0, "GPU": 0.5}
    assert (placement.elastic["trainer"].first, placement.hosts["pair"].first) == (0, 0)


def test_thirds_add_up_to_no_more_than_one_device():
    """Ray counts in ten-thousandths."""
    third = {"instance_resources": {"gpus": "1/3"}}
    roles = {name: {**JUDGE, **third} for name in ("one", "two", "three")}
    placement = placed(roles, groups=[{"name": "all", "roles": ["one", "two", "three"]}])

    assert asks(placement) == [{"GPU": 1.0}]


def test_what_does_not_fit_on_one_device_has_whole_ones():
    """Ray does not divide several devices: three halves are two devices, which the instances know by their numbers."""
    blueprint = drawn(
        {"rollout": {**ROLLOUT, "total": 6, "per_group": 3, "driver": True, "instance_resources": {"gpus": "0.5"}}}
    )
    placement = codec.loads(Placement, blueprint.attached[FILE])

    assert asks(placement) == [{"GPU": 2.0}] * 2
    found = [host_devices(role_plans(blueprint.plan), "rollout", group) for group in range(2)]
    assert found == [
        {("rollout", 0): (0,), ("rollout", 1): (0,), ("rollout", 2): (1,)},
        {("rollout", 3): (0,), ("rollout", 4): (0,), ("rollout", 5): (1,)},
    ]


def test_isolation_is_exactly_what_the_instances_need():
    """One of the resource for each worker and instance, and one for the coordinators, which are on the head node."""
    roles = {"trainer": {**TRAINER, "nodes": 1, "nproc_per_node": 2}, "rollout": ROLLOUT}
    placement = placed(roles, worker_isolation="WORKER", master={"isolation": "MASTER"})

    assert [bundle.get("WORKER", 0.0) for bundle in asks(placement)] == [2.0, 2.0, 2.0, 0.0]
    assert asks(placement)[-1] == {"MASTER": 1.0, "node:__internal_head__": 0.001}


@pytest.mark.parametrize(
    ("roles", "fields", "told"),
    [
        pytest.param(
            {
                "trainer": {"entrypoint": "t.py", "nproc_per_node": 2, "instance_resources": {"gpus": "0.5"}},
                "rollout": {**JUDGE, "total": 2, "per_group": 2, "instance_resources": {"gpus": "0.5"}},
            },
            {"groups": [{"name": "pair", "roles": ["trainer", "rollout"]}]},
            "the roles of group pair use 2 devices on each node; with backend ray",
            id="an elastic role shares several devices",
        ),
        pytest.param(
            {"trainer": {**TRAINER, "node_group_failover": {"label": "rack"}}, "judge": JUDGE},
            {},
            "roles.trainer.node_group_failover: not supported by the ray backend",
            id="node group failover",
        ),
        pytest.param(
            {"trainer": TRAINER, "judge": JUDGE}, {"tls": {"secret": "mine"}}, "tls: {secret: mine} is not allowed", id="tls"
        ),
    ],
)
def test_what_cannot_run_is_refused(roles, fields, told):
    """At submission, with the field."""
    with pytest.raises(SubmitError) as raised:
        drawn(roles, **fields)
    assert told in str(raised.value)


def test_what_is_ignored_is_said():
    """With the role that has the field."""
    notes = drawn({"trainer": {**TRAINER, "image": "train:1"}, "judge": JUDGE}, master={"cpu": "2"}).notes

    assert {"roles.trainer.image: ignored by the ray backend", "master.cpu: ignored by the ray backend"} <= set(notes)
