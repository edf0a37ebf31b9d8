"""What a wrong field of a job with several roles says; placement and groups are in test_placement.py."""

from __future__ import annotations

import pytest

from tests.job.test_errors import DURATION, GOOD, text_of


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(
            {"launch": "mpi"},
            "launch: 'mpi' is not allowed; expected one of elastic, simple",
            id="an unknown launch",
        ),
        pytest.param(
            {"total": -1},
            "total: -1 is not allowed; expected a whole number from 0 to 999999",
            id="fewer instances than none",
        ),
        pytest.param(
            {"instance_resources": {"gpus": "1/0"}},
            "instance_resources.gpus: '1/0' is not allowed; expected a whole number of devices, or a fraction of one device "
            "such as 0.5 or 1/3",
            id="no fraction",
        ),
        pytest.param(
            {"instance_resources": {"user_defined": {"rdma": "many"}}},
            "instance_resources.user_defined.rdma: 'many' is not allowed; expected a number of 0 or more",
            id="no amount",
        ),
        pytest.param(
            {"node_group_failover": {"label": "rack", "timeout": "10s"}},
            f"node_group_failover.timeout: '10s' is not allowed; expected {DURATION}, 30s or more",
            id="a time-out that DLRover ignores",
        ),
        pytest.param(
            {"config": {"a": {1, 2}}},
            "config: {'a': {1, 2}} is not allowed; expected a mapping of plain JSON values with text as keys",
            id="settings that JSON cannot hold",
        ),
        pytest.param(
            {"cluster": {"device_type": "tpu"}},
            "cluster.device_type: 'tpu' is not allowed; expected one of gpu, cpu",
            id="an unknown device",
        ),
        pytest.param(
            {"master": {"max_restarts": 0.5}},
            "master.max_restarts: 0.5 is not allowed; expected a whole number from 0 to 999999",
            id="half a restart",
        ),
        pytest.param(
            {"groups": [{"roles": "actor"}]},
            "groups[0].roles: 'actor' is not allowed; expected a list",
            id="a group of letters",
        ),
        pytest.param(
            {"process_group": False},
            "process_group: has no effect on a script or command; expected an entrypoint module:function",
            id="a process group of a script",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_path_and_what_is_allowed(change, text):
    """One mistake gives one line: path, value, what is allowed."""
    assert text_of({**GOOD, **change}) == text


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ({"judge": {"total": 16385}}, "roles: the simple roles have 16385 instances in total; at most 16384 are allowed"),
        (
            {"judge": {"total": 16384, "instance_resources": {"gpus": 9}}},
            "roles: the simple roles need 147456 devices in total; at most 131072 are allowed",
        ),
    ],
)
def test_more_instances_than_a_plan_may_hold_are_refused(roles, text):
    """A plan with more is not read, so that no script can make a supervisor start millions of them."""
    simple = {name: {"launch": "simple", "entrypoint": "x.py", **role} for name, role in roles.items()}

    assert text in text_of({"name": "j", "roles": simple})


@pytest.mark.parametrize("launch", ["elastic", "simple"])
def test_thousands_of_roles_are_refused_at_once(launch):
    """Each elastic role has a coordinator and is supervised in the same process: their number is bounded."""
    roles = {f"r{number}": {"launch": launch, "entrypoint": "x.py"} for number in range(4000)}

    assert text_of({"name": "j", "roles": roles}) == "roles: 4000 roles are not allowed; expected at most 256"


def test_the_nodes_of_all_elastic_roles_are_bounded():
    """Each role alone may have as many."""
    roles = {name: {"entrypoint": "x.py", "nodes": "1:16384"} for name in ("actor", "critic")}

    expected = "roles: the elastic roles have 32768 nodes in total; at most 16384 are allowed"
    assert text_of({"name": "j", "roles": roles}) == expected
