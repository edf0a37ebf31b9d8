"""Jobs with several roles in an AppWrapper, and as a PyTorchJob."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.wrapped.podsets import pod_sets
from rallypoint.cli.plan import plan_lines
from rallypoint.job import load_job
from rallypoint.supervision.policy import Policy
from rallypoint.wire.plan import Kind
from tests.crds import problems
from tests.kube.manifests import IMAGE

TRAINER = {"launch": "elastic", "entrypoint": "train.py", "nodes": 2, "nproc_per_node": 2, "image": IMAGE}
SIMPLE = {"launch": "simple", "entrypoint": "m:f", "total": 2, "image": IMAGE, "instance_resources": {"gpus": 0}}


def planned(roles: dict[str, Any], kind: Kind = Kind.APPWRAPPER, **fields: Any) -> Blueprint:
    job = load_job({"name": "rl", "roles": roles, **fields}, based=False)
    return KubernetesBackend(Access(namespace="team-a")).plan_as(job, kind)


def jobs_of(blueprint: Blueprint) -> dict[str, dict[str, Any]]:
    """Return the Job of each pod set, by its name."""
    jobset = blueprint.objects[-1]["spec"]["components"][-1]["template"]
    return {one["name"]: one["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]}


def test_each_role_is_a_pod_set() -> None:
    """The objects are those that the controllers' definitions allow, and the supervisor counts all pods."""
    blueprint = planned({"trainer": {**TRAINER, "queue": "q"}, "rollout": {**SIMPLE, "total": 3}})

    wrapper = blueprint.objects[-1]
    assert problems(wrapper) == []
    assert problems(wrapper["spec"]["components"][-1]["template"]) == []
    assert [each.replicas for each in pod_sets(wrapper)] == [2, 3]
    assert wrapper["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert (blueprint.plan.kind, blueprint.plan.min_nodes, blueprint.plan.roles) == (Kind.APPWRAPPER, 5, ())
    assert Policy.from_plan(blueprint.plan).wrapped


def test_nodes_of_an_elastic_role_meet_at_its_first_pod() -> None:
    """By the name that the JobSet gives it."""
    trainer = jobs_of(planned({"trainer": TRAINER, "rollout": SIMPLE}))["trainer"]["template"]["spec"]["containers"][0]

    env = {one["name"]: one.get("value") for one in trainer["env"]}
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("rl-trainer-0-0.rl", "23456")
    place = trainer["command"].index("--rdzv-endpoint")
    assert trainer["command"][place + 1] == "$(MASTER_ADDR):$(MASTER_PORT)"


@pytest.mark.parametrize(
    ("pod", "container", "expected"),
    [(0, 0, "0 0 rollout-0"), (1, 1, "3 1 rollout-3"), (1, 2, "1 1 judge-1")],
)
def test_an_instance_works_out_its_rank(pod, container, expected) -> None:
    """From the number of its pod, which Kubernetes gives to each pod of an indexed Job."""
    command = {"entrypoint": ["sh", "-c", "echo $RANK $RALLYPOINT_GROUP $NAME"]}
    roles = {"rollout": {**SIMPLE, **command, "total": 4, "per_group": 2}, "judge": {**SIMPLE, **command}}
    pair = jobs_of(planned(roles, groups=[{"name": "pair", "roles": ["rollout", "judge"]}]))["pair"]

    found = pair["template"]["spec"]["containers"][container]
    env = {one["name"]: one["value"] for one in found["env"] if "value" in one}
    # The file that counts lives is in a volume of the pod.
    words = [word.replace("/var/run/rallypoint", "/nowhere") for word in found["command"]]
    script = [word.replace('echo "$n" > "$1";', "") for word in words]
    ran = subprocess.run(
        script,
        env={"PATH": os.environ["PATH"], **env, "JOB_COMPLETION_INDEX": str(pod)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == expected.split()


def test_where_a_failure_begins_says_who_restarts() -> None:
    """Kubernetes restarts a container; what resets the job is the wrapper's controller's to do."""
    jobs = jobs_of(planned({"a": SIMPLE, "b": {**SIMPLE, "on_failure": "job"}}, recovery={"node_replacements": 4}))

    assert (jobs["a"]["template"]["spec"]["restartPolicy"], jobs["a"]["backoffLimit"]) == ("OnFailure", 8)
    assert (jobs["b"]["template"]["spec"]["restartPolicy"], jobs["b"]["backoffLimit"]) == ("Never", 0)


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        pytest.param(
            {f"a{n}": SIMPLE for n in range(9)},
            "roles: 9 roles need 9 pod sets, and an AppWrapper has at most 8; collocate simple roles in groups, or run the job "
            "with kind pods",
            id="too many roles",
        ),
        pytest.param(
            {"a": SIMPLE, "b": {**SIMPLE, "driver": False}},
            "roles.b.driver: false is not allowed; expected true with kind appwrapper",
            id="a server",
        ),
        pytest.param(
            {"trainer": {**TRAINER, "node_group_failover": {"label": "rack"}}, "b": SIMPLE},
            "roles.trainer.node_group_failover: is not allowed with kind appwrapper, whose pods another controller creates",
            id="node groups",
        ),
        pytest.param(
            {"a": {**SIMPLE, "on_failure": "none"}},
            "roles.a.on_failure: 'none' is not allowed; expected instance",
            id="no answer",
        ),
    ],
)
def test_what_an_appwrapper_cannot_run_is_refused(roles, text) -> None:
    """Its controller counts pods, and knows nothing of roles."""
    with pytest.raises(SubmitError) as caught:
        planned(roles)
    assert text in str(caught.value)


def test_the_roles_of_an_appwrapper_are_shown() -> None:
    """Its plan has none, since another controller decides about them."""
    lines = list(plan_lines(planned({"trainer": TRAINER, "rollout": {**SIMPLE, "total": 2}})))

    assert lines[0] == "Job rl: 2 roles, profile ladder"
    assert "  rollout: 2 instances, 1 per group, each without GPU" in lines


def test_eight_roles_fit_into_an_appwrapper_with_a_queue() -> None:
    """It has no pods of coordinators."""
    roles = {"trainer": TRAINER, **{f"a{n}": {**SIMPLE, "queue": "q"} for n in range(7)}}
    assert len(jobs_of(planned(roles))) == 8


def test_a_pytorchjob_runs_one_role() -> None:
    """It is one world of workers."""
    with pytest.raises(SubmitError) as caught:
        planned({"trainer": TRAINER, "rollout": SIMPLE}, Kind.PYTORCHJOB)

    told = "kind: pytorchjob runs one elastic role, and job rl has the roles trainer, rollout; use kind pods or appwrapper"
    assert str(caught.value) == told
