"""Who may connect to the pods of a job: the manifests that say so, and the objects of jobs that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.cli.main import main
from rallypoint.job import JobError, load_job
from rallypoint.provider.connections.connection import Defaults
from rallypoint.provider.connections.defaults import with_defaults
from rallypoint.wire.plan import Kind
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.wrapped_jobs import submitted
from tests.waiting import eventually_async

pytestmark = pytest.mark.live

SPEC: dict[str, Any] = {"name": "train", "entrypoint": "train.py", "image": "any:1", "nodes": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    with running(Options(controllers=("pytorchjob",), speed=100.0)) as emulator:
        yield emulator


def policies(cluster: Running) -> list[dict[str, Any]]:
    """Return the NetworkPolicies of the namespace."""
    path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
    found: list[dict[str, Any]] = cluster.request("GET", path)[1]["items"]
    return found


def drawn(backend: KubernetesBackend, value: object) -> list[dict[str, Any]]:
    """Return the NetworkPolicies of a plan."""
    job = load_job({**SPEC, "network_policy": value}, based=False)
    return [item for item in backend.plan(job).objects if item["kind"] == "NetworkPolicy"]


async def test_a_job_lets_in_its_own_pods_alone(backend: KubernetesBackend) -> None:
    """And the API server's networks where the coordinator and its metrics listen."""
    (policy,) = drawn(backend, "10.0.0.0/28, fd00::/64")

    own = {"rallypoint.dev/job": "train", "rallypoint.dev/uid": "xxxxxxxx"}
    assert policy["spec"]["podSelector"] == {"matchLabels": own}
    peers, server = policy["spec"]["ingress"]
    assert peers == {"from": [{"podSelector": {"matchLabels": own}}]}
    assert [each["ipBlock"]["cidr"] for each in server["from"]] == ["10.0.0.0/28", "fd00::/64"]
    assert [port["port"] for port in server["ports"]] == [29600, 29620]
    assert drawn(backend, "off") == []
    (opened,) = drawn(backend, "on")
    assert opened["spec"]["ingress"][1] == {"ports": [{"port": 29600, "protocol": "TCP"}]}


async def test_each_part_of_a_job_with_several_roles_has_one(backend: KubernetesBackend) -> None:
    """They precede the pods; the simple roles have no coordinator, so no port of theirs is open."""
    roles = {
        "trainer": {"entrypoint": "train.py", "image": "any:1"},
        "rollout": {"launch": "simple", "entrypoint": "m:serve", "image": "any:1"},
    }
    job = load_job({"name": "rl", "network_policy": "10.0.0.0/28", "roles": roles}, based=False)

    objects = backend.plan(job).objects

    whole, trainer = (each for each in objects if each["kind"] == "NetworkPolicy")
    (own, children), name = whole["spec"]["ingress"][0]["from"], "rallypoint.dev/job"
    assert (own["podSelector"], children["podSelector"]) == (
        whole["spec"]["podSelector"],
        {"matchLabels": {"rallypoint.dev/parent": "rl"}},
    )
    assert len(whole["spec"]["ingress"]) == 1
    assert trainer["spec"]["podSelector"]["matchLabels"][name] == "rl-trainer"
    assert [peer["podSelector"]["matchLabels"] for peer in trainer["spec"]["ingress"][0]["from"]] == [
        {name: "rl"},
        {"rallypoint.dev/parent": "rl"},
    ]
    assert [port["port"] for port in trainer["spec"]["ingress"][1]["ports"]] == [29600, 29620]
    kinds = [each["kind"] for each in objects]
    assert kinds.index("NetworkPolicy") < kinds.index("Pod")


async def test_it_is_created_before_the_pods_and_goes_with_the_job(
    backend: KubernetesBackend, cluster: Running, tmp_path: Path
) -> None:
    """Whatever kind of job it is; a supervisor does not reach these pods, so nothing but their own is let in."""
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "worker.py").write_text("import time; time.sleep(0.5)")
    spec = {**SPEC, "entrypoint": str(tmp_path / "f" / "worker.py"), "network_policy": "on"}
    blueprint = backend.plan_as(load_job(spec, based=False), Kind.PYTORCHJOB)
    async with submitted(backend, "train", tmp_path / "f", blueprint=blueprint) as job:
        await job.until(lambda r: r.attempt == 1)
        await eventually_async(lambda: policies(cluster))
        (policy,) = policies(cluster)

    assert policy["metadata"]["ownerReferences"][0]["name"] == "rallypoint-train"
    assert len(policy["spec"]["ingress"]) == 1
    await eventually_async(lambda: not policies(cluster))


def test_a_connection_says_it_for_jobs_that_do_not() -> None:
    """What a job says itself wins."""
    silent, own = load_job(SPEC, based=False), load_job({**SPEC, "network_policy": "10.1.0.0/16"}, based=False)
    said = Defaults(network_policy="on")

    assert with_defaults(silent, said).network_policy == "on"
    assert with_defaults(own, said).network_policy == "10.1.0.0/16"
    with pytest.raises(JobError, match="network_policy: 'yes' is not allowed; expected off, on, or the networks"):
        with_defaults(silent, Defaults(network_policy="yes"))


@pytest.mark.parametrize("value", ["10.0.0.1", "10.0.0.1/8", "10.0.0.0/28,", "*", 5, ["10.0.0.0/8"], True])
def test_a_wrong_value_is_refused(value: object) -> None:
    """With the field, the value and what is allowed."""
    with pytest.raises(JobError, match=r"network_policy: .* is not allowed; expected off, on, or the networks"):
        load_job({**SPEC, "network_policy": value}, based=False)


def test_manifests_prints_policies_to_apply_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """For jobs of one name and their elastic roles; what they leave open is told beside them."""
    assert main(["manifests", "network-policy", "--namespace", "team", "--job", "train", "--api-server", "10.0.0.0/28"]) == 0
    out, err = capsys.readouterr()
    policy, of_roles = yaml.safe_load_all(out)
    assert (policy["metadata"], err) == ({"name": "rallypoint-train", "namespace": "team"}, "")
    assert of_roles["metadata"]["name"] == "rallypoint-train-roles"
    own, children = {"rallypoint.dev/job": "train"}, {"rallypoint.dev/parent": "train"}
    for each, selected in ((policy, own), (of_roles, children)):
        assert each["spec"]["podSelector"] == {"matchLabels": selected}
        assert [peer["podSelector"]["matchLabels"] for peer in each["spec"]["ingress"][0]["from"]] == [own, children]
        assert each["spec"]["ingress"][1]["from"] == [{"ipBlock": {"cidr": "10.0.0.0/28"}}]

    assert main(["manifests", "network-policy", "--job", "train"]) == 0
    assert "open to every address" in capsys.readouterr().err
    for words in ([], ["--job", "No"], ["--job", "train", "--api-server", "x"]):
        assert main(["manifests", "network-policy", *words]) == 1
        assert "--" in capsys.readouterr().err
