"""Counts, groups and machines of a job with several roles: what is solved, what fits, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.job import JobError, load_job
from rallypoint.job.document import read_json, read_yaml
from rallypoint.job.placement import Capacity, Members, fit, place_names
from tests.job.builder.test_builder import problems


def document(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "rl",
        "cluster": {"nodes": 2, "devices_per_node": 2},
        "groups": [{"name": "pair", "roles": ["actor", "rollout"]}],
        "roles": {
            "actor": {"entrypoint": "pkg.actor:run", "total": 4, "per_group": 2},
            "rollout": {"launch": "simple", "entrypoint": "pkg.rollout:serve", "total": 4, "per_group": 2, "driver": False},
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = base
        for step in parents:
            place = place.setdefault(step, {})
        place[last] = value
    return base


def test_a_group_shares_its_devices_equally():
    """Each role has 1/n of a device unless it names a fraction; an elastic role's counts become nodes and workers."""
    actor, rollout = load_job(document()).roles

    assert (actor.nodes.min, actor.nproc_per_node, actor.total, actor.per_group) == (2, 2, None, None)
    assert (rollout.total, rollout.per_group) == (4, 2)
    assert actor.instance_resources.gpus == rollout.instance_resources.gpus == Fraction(1, 2)


def test_three_roles_share_exactly_one_device():
    """Thirds add up to one, not to 0.99."""
    roles = {name: {"launch": "simple", "entrypoint": "m:f"} for name in "abc"}
    job = load_job(
        {"name": "x", "cluster": {"nodes": 1, "devices_per_node": 1}, "roles": roles, "groups": [{"roles": [*"abc"]}]}
    )

    assert [role.instance_resources.gpus for role in job.roles] == [Fraction(1, 3)] * 3
    assert job.to_document()["roles"][0]["instance_resources"]["gpus"] == "1/3"


def test_members_of_a_group_keep_their_other_resources():
    """Cores, memory and resources of the user's own stay."""
    needs = {"cpu": 4, "memory": "8Gi", "user_defined": {"rdma": 1}, "gpus": 0.25}
    _, rollout = load_job(document(roles__rollout__instance_resources=needs)).roles

    assert (rollout.instance_resources.cpu, rollout.instance_resources.memory) == ("4", "8Gi")
    assert (rollout.instance_resources.user_defined, rollout.instance_resources.gpus) == ({"rdma": 1}, Fraction(1, 4))


@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        pytest.param(
            {"roles__rollout__total": 6},
            "groups[0].roles",
            "roles actor (2) and rollout (3) have different numbers of groups (total divided by per_group); "
            "expected the same number in each role",
            id="unequal groups",
        ),
        pytest.param(
            {"roles__rollout__total": 5},
            "roles.rollout.total",
            "5 is not allowed; expected a number divisible by per_group (2)",
            id="not divisible",
        ),
        pytest.param(
            {"roles__rollout__instance_resources": {"gpus": 1}},
            "roles.rollout.instance_resources.gpus",
            "1 is not allowed in a group; expected a fraction of one device, since its roles share devices",
            id="a whole device in a group",
        ),
        pytest.param(
            {"roles__rollout__instance_resources": {"gpus": "2/3"}},
            "groups",
            "the GPU shares 1/2 (actor) + 2/3 (rollout) exceed one GPU; expected a sum of at most 1",
            id="more than one device",
        ),
        pytest.param(
            {"roles__rollout__instance_resources": {"gpus": 1.5}},
            "roles.rollout.instance_resources.gpus",
            "1.5 is not allowed; expected a whole number of devices, or a fraction of one device such as 0.5 or 1/3",
            id="more than a fraction",
        ),
        pytest.param(
            {"groups": [{"roles": ["actor"]}]},
            "groups[0].roles",
            "['actor'] is not allowed; expected at least two different roles",
            id="one role alone",
        ),
        pytest.param(
            {"groups": [{"roles": ["actor", "critic"]}]},
            "groups[0].roles",
            "role 'critic' is not defined; expected names of roles of the job (actor, rollout)",
            id="an unknown role",
        ),
        pytest.param(
            {"groups": [{"roles": ["actor", "rollout"]}, {"roles": ["rollout", "actor"]}]},
            "groups[1].roles",
            "role 'actor' has already been assigned to groups[0]; expected one group for each role",
            id="two groups",
        ),
        pytest.param(
            {"cluster__devices_per_node": 1},
            "cluster.devices_per_node",
            "a group needs 2 devices on one node (actor 1 and rollout 1); expected at most 1",
            id="too large for a node",
        ),
        pytest.param(
            {"cluster__nodes": 1}, "cluster.nodes", "1 x 2 devices are not enough; the roles need 4", id="too many groups"
        ),
        pytest.param(
            {"roles__actor__driver": False},
            "roles",
            "no driver role has an instance; expected driver: true in at least one role with a total of 1 or more, because "
            "the job ends when all its driver roles have ended",
            id="no driver",
        ),
        pytest.param(
            {"roles__rollout__nodes": 2},
            "roles.rollout.nodes",
            "has no effect with launch simple; set total and per_group",
            id="nodes of a simple role",
        ),
        pytest.param(
            {"roles__actor__nproc_per_node": 3},
            "roles.actor.per_group",
            "2 is not allowed; expected the value of nproc_per_node (3), or no value",
            id="two values of one count",
        ),
        pytest.param(
            {"roles__actor__total": 4, "roles__actor__nodes": 3},
            "roles.actor.total",
            "4 is not allowed; expected 3 nodes x 2 workers, or no value",
            id="three values of two counts",
        ),
    ],
)
def test_what_does_not_agree_is_refused(changes, path, text):
    """With the path, both roles and both numbers."""
    found = problems(lambda: load_job(document(**changes)))

    assert found[path] == text


def test_fields_and_agreement_are_told_together():
    """A wrong field of one role does not hide what is wrong between others; nothing follows from the wrong value itself."""
    roles = {
        name: {"launch": "simple", "entrypoint": "m:f", "total": total} for name, total in {"a": 2, "b": 3, "c": 1}.items()
    }
    roles["c"]["per_group"] = "x"
    found = problems(lambda: load_job({"name": "x", "roles": roles, "groups": [{"roles": ["a", "b"]}, {"roles": ["b", "c"]}]}))

    assert list(found) == ["roles.c.per_group", "groups[0].roles", "groups[1].roles"]


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (["", "pair"], ("group-0", "pair")),
        (["pair", "pair", "pair"], ("pair", "pair-g", "pair-g-g")),
        (["actor", "actor-g"], ("actor-g", "actor-g-g")),
        (["", "group-0"], ("group-0", "group-0-g")),
    ],
)
def test_no_group_has_the_name_of_another_group_or_of_a_role(groups, names):
    """Their instances were placed together."""
    assert place_names(groups, ["actor", "rollout"]) == names


def test_a_group_never_spans_nodes():
    """Three groups of two devices do not fit onto two nodes of three, although six devices are enough."""
    roles = {"a": {"launch": "simple", "entrypoint": "m:f", "total": 6, "per_group": 2, "instance_resources": {"gpus": 1}}}
    found = problems(lambda: load_job({"name": "x", "cluster": {"nodes": 2, "devices_per_node": 3}, "roles": roles}))

    assert found == {"cluster.nodes": "2 nodes of 3 devices cannot hold all groups, because a group never spans nodes"}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 6))
def test_packing_agrees_with_placing_group_by_group(roles, nodes, devices):
    """The grouped count gives what placing each group onto the fullest node that holds it gives."""
    known = {
        str(index): Members(total=count, per_group=1, gpus=Fraction(size), cpu=Fraction(0))
        for index, (size, count) in enumerate(roles)
    }
    free = [devices] * nodes
    fits = True
    for size in sorted((size for size, count in roles for _ in range(count)), reverse=True):
        place = min((index for index, left in enumerate(free) if left >= size), key=lambda index: free[index], default=None)
        if place is None:
            fits = False
            break
        free[place] -= size

    wrong = list(fit([], known, Capacity(nodes=nodes, devices_per_node=devices)))

    assert (not wrong) == fits


def test_devices_of_a_cpu_cluster_are_cores():
    """A role without resources of its own takes a core for each device; one that names cores keeps them."""
    roles = {
        "a": {"launch": "simple", "entrypoint": "m:f", "instance_resources": {"gpus": 2}},
        "b": {"launch": "simple", "entrypoint": "m:f", "instance_resources": {"cpu": 3, "gpus": 1}},
    }
    cluster = {"nodes": 1, "devices_per_node": 5, "device_type": "cpu"}
    job = load_job({"name": "x", "cluster": cluster, "roles": roles})

    assert [(role.instance_resources.cpu, role.instance_resources.gpus) for role in job.roles] == [("2", None), ("3", None)]
    cluster["devices_per_node"] = 4
    assert "cluster.nodes" in problems(lambda: load_job({"name": "x", "cluster": cluster, "roles": roles}))


def test_what_workers_need_becomes_what_their_nodes_ask_for():
    """Whole devices of an elastic role outside of groups; a value given twice is an error."""
    needs = {"cpu": "500m", "memory": "1Gi", "disk": "2Gi", "gpus": 1}
    fields: dict[str, Any] = {"name": "x", "entrypoint": "a.py", "nproc_per_node": 2, "instance_resources": needs}
    (role,) = load_job(fields).roles

    assert (role.resources.cpu, role.resources.memory, role.resources.gpus) == ("1", "2Gi", 2)
    assert role.resources.extended == {"ephemeral-storage": "4Gi"}
    assert load_job(load_job(fields).to_document()) == load_job(fields)
    assert "instance_resources.cpu" in problems(lambda: load_job(**fields, resources={"cpu": 1}))


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_only_settings_of_the_user_have_numbers_with_a_point(read):
    """Inside `config`, in YAML and JSON; elsewhere such numbers stay text, and quoted ones do everywhere."""
    text = (
        '{"name": "x", "entrypoint": "a.py", "config": {"lr": 1e-5, "betas": [0.9, {"x": -1.5}], "v": "1.10"}, "image": "1.10"}'
    )

    found = read(text if read is read_json else text.replace('"image": "1.10"', '"image": 1.10'))

    assert found["config"] == {"lr": 1e-5, "betas": [0.9, {"x": -1.5}], "v": "1.10"}
    assert found["image"] == "1.10"
    assert read_json('{"a": 1.5, "config": 2.5}') == {"a": "1.5", "config": 2.5}


def test_a_config_is_bounded():
    """It reaches workers as one environment variable."""
    with pytest.raises(JobError, match="at most 98304 characters"):
        load_job(name="x", entrypoint="a.py", config={"a": "x" * 100_000})
