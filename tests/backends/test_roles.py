"""Jobs with several roles at a backend: what is refused before anything is created, and how their conductor decides."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.backend import draw
from rallypoint.backends.roles import RolesError, only_plan, policy_of
from rallypoint.job import ElasticJob, compile_plan, load_job
from rallypoint.job.compile_roles import compile_roles
from rallypoint.supervision.role_records import ConductorPolicy, Level, RolePolicy
from rallypoint.wire.plan import OrphanPolicy
from rallypoint.wire.role_plans import role_plans, roles_env


def job(**fields: Any) -> ElasticJob:
    document = {"name": "x", **({} if "roles" in fields else {"entrypoint": "a.py", "image": "i"}), **fields}
    return load_job(document, based=False)


SERVER = {"launch": "simple", "entrypoint": "m:f", "driver": False, "total": 4, "per_group": 2}


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        pytest.param({"launch": "simple"}, "launch simple (trainer)", id="a simple role"),
        pytest.param({"instance_resources": {"gpus": 0.5}}, "instance_resources (trainer)", id="a share of a device"),
        pytest.param(
            {"roles": {"a": {"entrypoint": "a.py"}, "b": SERVER}},
            "several roles in one job, launch simple (b)",
            id="several roles",
        ),
    ],
)
def test_what_no_backend_runs_yet_is_refused_by_name(fields, missing):
    """Instead of training one of the roles, or all of them with less than they ask for."""
    with pytest.raises(RolesError, match="not supported yet") as caught:
        only_plan(job(**fields), backend="local")

    assert f"not supported yet: {missing}; nothing was started" in str(caught.value)


def test_nodes_that_are_replaced_together_need_several_machines():
    """On this machine the field has no effect, which is noted; a backend without it refuses the job."""
    with pytest.raises(
        SubmitError, match=r"roles.trainer.node_group_failover: not supported by the ray backend; remove the field"
    ):
        only_plan(job(node_group_failover={"label": "rack"}), backend="ray")

    (plan,) = compile_plan(job(node_group_failover={"label": "rack", "timeout": "40s"}))
    assert (plan.node_group, plan.grace.node_group_timeout) == ("rack", 40.0)
    assert only_plan(job(node_group_failover={"label": "rack"}), backend="local").grace.node_group_timeout == 300.0


def test_counts_and_needs_of_one_elastic_role_are_its_nodes():
    """Such a job is one that runs today, with the same plan."""
    built = job(total=4, per_group=2, instance_resources={"gpus": 1}, launch="elastic")

    assert only_plan(built, backend="local") == only_plan(
        job(nodes=2, nproc_per_node=2, resources={"gpus": 2}), backend="local"
    )


@pytest.mark.parametrize("fields", [{"worker_isolation": "W"}, {"master": {"isolation": "M"}}], ids=["workers", "master"])
def test_kubernetes_has_other_words_for_isolation(fields):
    """A job that would be placed anywhere is refused."""
    with pytest.raises(SubmitError, match="node_selector"):
        draw(job(**fields), namespace="default")


def test_fields_of_the_master_without_effect_are_noted():
    """The coordinator's pod has fixed values."""
    notes = draw(job(master={"cpu": 2, "memory": "4096Mi", "create_timeout": 600}), namespace="default").notes

    assert [note for note in notes if note.startswith("master.")] == [
        f"master.{name}: not used; the coordinator's pod has fixed values" for name in ("cpu", "memory", "create_timeout")
    ]


@pytest.mark.parametrize("policy", list(OrphanPolicy))
def test_the_orphan_policy_of_simple_roles_is_noted(policy):
    """Their instances do not look at the lease."""
    roles = {"actor": {"entrypoint": "m:a", "image": "i"}, "rollout": {**SERVER, "image": "i"}}
    notes = draw(job(roles=roles), namespace="default", orphan_policy=policy).notes

    assert [note.endswith("continue (rollout)") for note in notes if "orphan_policy" in note] == (
        [True] if policy is OrphanPolicy.STOP else []
    )


def test_a_conductor_decides_by_the_job():
    """Units, groups, drivers, where failures begin, and the budgets."""
    roles = {
        "actor": {"entrypoint": "m:a", "total": 4, "per_group": 2},
        "rollout": SERVER,
        "judge": {**SERVER, "on_failure": "role"},
    }
    found = policy_of(
        compile_roles(
            job(
                roles=roles,
                groups=[{"name": "pair", "roles": ["actor", "rollout"]}],
                master={"max_restarts": 4},
                recovery={"node_replacements": 5, "stop_grace_period": "3s"},
                fault_tolerance={"retry_limit": 6},
            )
        )
    )

    assert found == ConductorPolicy(
        roles=(
            RolePolicy(name="actor", elastic=True, grace=8.0),
            RolePolicy(name="rollout", units=4, per_group=2, place="pair", driver=False, grace=8.0),
            RolePolicy(name="judge", units=4, per_group=2, driver=False, on_failure=Level.ROLE, grace=8.0),
        ),
        node_max_restart=5,
        job_max_restart=6,
        master_max_restart=4,
    )


@pytest.mark.parametrize(("rpc", "told"), [({}, None), ({"pickle": False}, None), ({"pickle": True}, "1")], ids=repr)
def test_processes_may_use_pickles_only_where_the_job_says_so(rpc, told):
    """The variable reaches every role."""
    plan = compile_roles(job(roles={"a": {"entrypoint": "a.py"}, "b": SERVER}, rpc=rpc))

    assert [roles_env(plan, role).get("RALLYPOINT_ROLES_PICKLE") for role in role_plans(plan)] == [told, told]
