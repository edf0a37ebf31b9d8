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
from rallypoint.backends.turns import masked
from rallypoint.cli.plan import plan_lines
from rallypoint.job import load_job
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.wire.env import MASKED
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.plan import Kind
from rallypoint.wire.python import run_module
from tests.crds import problems
from tests.emulator.kubelet.expansion import expanded
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
    words = [expanded(word, env).replace("/var/run/rallypoint", "/nowhere") for word in found["command"]]
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
            {"trainer": {**TRAINER, "node_group_failover": {"label": "rack"}}, "b": SIMPLE},
            "roles.trainer.node_group_failover: is not allowed with kind appwrapper, "
            "because another controller creates the pods of such a job",
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


def test_a_server_ends_within_its_pod() -> None:
    """It runs under a host, which reads the request in an annotation of the pod; its pod says how many pods it waits for."""
    fields = {"termination_grace_period": "40s", "driver": False}
    trainer = {**TRAINER, "python": ["/opt/python"], "driver": False}
    roles = {"driver": {**SIMPLE, "total": 3}, "server": {**SIMPLE, **fields}, "trainer": trainer}
    jobs = jobs_of(planned(roles))
    driver, server, nodes = (jobs[name]["template"] for name in ("driver", "server", "trainer"))

    assert driver["metadata"]["annotations"] == {"rallypoint.dev/drivers": "driver-0"}
    assert server["metadata"]["annotations"] == nodes["metadata"]["annotations"] == {"rallypoint.dev/driver-pods": "3"}
    assert "rallypoint-end" not in {volume["name"] for volume in driver["spec"]["volumes"]}
    for template in (server, nodes):
        [volume] = [one for one in template["spec"]["volumes"] if one["name"] == "rallypoint-end"]
        request = {"path": "end", "fieldRef": {"fieldPath": "metadata.annotations['rallypoint.dev/end']"}}
        assert volume["downwardAPI"] == {"items": [request]}
    end = ("server", "--until", "/etc/rallypoint-end/end", "--grace")
    # First comes the shell that works out the rank.
    command = run_module("rallypoint.agent", *end, "40", "--", python=("python",))
    assert server["spec"]["containers"][0]["command"][5:15] == [*command]
    # The agent has the grace period of its workers, and a margin.
    agent = run_module("rallypoint.agent", "run", python=("/opt/python",))
    command = run_module("rallypoint.agent", *end, "25", "--", *agent, python=("/opt/python",))
    assert nodes["spec"]["containers"][0]["command"][:15] == [*command]


def test_a_pod_with_a_driver_and_a_server() -> None:
    """Only the container of the server has a host."""
    roles = {"driver": SIMPLE, "server": {**SIMPLE, "driver": False}}
    pair = jobs_of(planned(roles, groups=[{"name": "pair", "roles": ["driver", "server"]}]))["pair"]["template"]

    its = {"rallypoint.dev/drivers": "driver-0", "rallypoint.dev/driver-pods": "2"}
    assert pair["metadata"]["annotations"] == its
    assert [("rallypoint.agent" in one["command"]) for one in pair["spec"]["containers"]] == [False, True]


def test_a_job_without_servers_has_no_host() -> None:
    """Nothing of its pods changes."""
    template = jobs_of(planned({"a": SIMPLE, "b": SIMPLE}))["a"]["template"]

    assert "rallypoint.dev/drivers" not in template["metadata"].get("annotations", {})
    assert "rallypoint.agent" not in template["spec"]["containers"][0]["command"]


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


def test_secrets_of_all_roles_are_hidden_by_the_plan_of_the_wrapper() -> None:
    """It has no plans of roles, but its supervisor and the tab read logs and reasons of their pods."""
    secret = "hunter2-of-the-warehouse"
    note = {"PW": secret, MASKED: f'[["PW", 0, {len(secret)}]]'}
    plan = planned({"trainer": TRAINER, "rollout": {**SIMPLE, "env": note}}).plan
    node = NodeSeen(
        attempt=1, node=0, incarnation=1, state=NodeState.FAILED, present=True, reason=secret, log_tail=(f"with {secret}",)
    )

    seen = masked(Observation(nodes=(node,)), plan)

    assert (seen.nodes[0].reason, seen.nodes[0].log_tail) == ("***", ("with ***",))
    assert mask_of_plan(plan)(f"line with {secret}") == "line with ***"
