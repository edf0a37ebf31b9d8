"""The PyTorchJob controller of the emulator makes the pods, and says of them, what the training operator does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulator.controllers.pytorchjob_rules import Address, PortError, next_status, problems, wanted

NOW = 1_700_000_000.0


def job(workers: int = 2, policy: str = "Never", **run_policy: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"mine": "yes"}},
        "spec": {"containers": [{"name": "pytorch", "image": "any", "env": [{"name": "A", "value": "1"}]}]},
    }
    role = {"restartPolicy": policy, "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train", "namespace": "default", "uid": "u1"},
        "spec": {
            "runPolicy": run_policy,
            "pytorchReplicaSpecs": {"Master": {"replicas": 1, **role}, "Worker": {"replicas": workers, **role}},
        },
    }


def pods(master: str, *workers: str) -> list[dict[str, Any]]:
    """Pods by role: a phase, `Failed:137` with a code, `Running*` being deleted, `` for none."""
    told = [("master", 0, master), *(("worker", index, text) for index, text in enumerate(workers))]
    return [_pod(role, index, text) for role, index, text in told if text]


def _pod(role: str, index: int, text: str) -> dict[str, Any]:
    phase, _, code = text.rstrip("*").partition(":")
    ended = [{"restartCount": 0, "state": {"terminated": {"exitCode": int(code)}}}] if code else [{"restartCount": 2}]
    return {
        "metadata": {
            "name": f"train-{role}-{index}",
            "labels": {"training.kubeflow.org/replica-type": role},
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if text.endswith("*") else {}),
        },
        "status": {"phase": phase, "containerStatuses": ended},
    }


def names(objects: tuple[dict[str, Any], ...]) -> list[str]:
    return [found["metadata"]["name"] for found in objects]


def told(status: dict[str, Any]) -> set[str]:
    return {condition["type"] for condition in status["conditions"] if condition["status"] == "True"}


def test_every_replica_is_created_with_its_rank() -> None:
    """A pod and a service per replica; each pod knows its master, its rank and the size of the world."""
    found = wanted(job(), [], Address())

    assert names(found.pods) == names(found.services) == ["train-master-0", "train-worker-0", "train-worker-1"]
    last = found.pods[2]
    environment = {variable["name"]: variable["value"] for variable in last["spec"]["containers"][0]["env"]}
    assert (
        environment
        | {
            "A": "1",
            "MASTER_ADDR": "train-master-0",
            "MASTER_PORT": "23456",
            "RANK": "2",
            "WORLD_SIZE": "3",
            "PYTHONUNBUFFERED": "1",
        }
        == environment
    )
    assert last["spec"]["restartPolicy"] == "Never"
    assert last["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert (
        last["metadata"]["labels"]
        | {
            "mine": "yes",
            "training.kubeflow.org/job-name": "train",
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": "1",
        }
        == last["metadata"]["labels"]
    )


def test_workers_wait_for_the_master_in_an_init_container() -> None:
    """The operator adds it after those of the job, to workers alone."""
    made = job()
    for role in made["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["initContainers"] = [{"name": "mine", "image": "any"}]

    master, worker, _ = wanted(made, [], Address()).pods

    assert [one["name"] for one in master["spec"]["initContainers"]] == ["mine"]
    assert [one["name"] for one in worker["spec"]["initContainers"]] == ["mine", "init-pytorch"]


def test_the_port_of_the_master_is_the_declared_one() -> None:
    """It is found by the container's and the port's name; a container of another name has none, and no pod is created."""
    made = job()
    container = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"name": "other", "containerPort": 1}, {"name": "pytorchjob-port", "containerPort": 4000}]
    variables = wanted(made, [], Address()).pods[0]["spec"]["containers"][0]["env"]

    assert {"name": "MASTER_PORT", "value": "4000"} in variables
    container["name"] = "trainer"
    with pytest.raises(PortError, match="port not found"):
        wanted(made, [], Address())


def test_what_the_webhook_refuses() -> None:
    """A job that the operator could never run is refused, with the place of what is missing."""
    made = job()
    roles = made["spec"]["pytorchReplicaSpecs"]
    assert problems(made) == []

    roles["Worker"]["template"] = {"spec": {"containers": [{"name": "trainer"}]}}
    roles["Master"]["replicas"] = 2

    where = "spec.pytorchReplicaSpecs"
    assert problems(made) == [
        f"{where}[Master].replicas: Forbidden: must be 1",
        f"{where}[Worker].template.spec.containers[0].image: Required value: must be required",
        f"{where}[Worker].template.spec.containers: Required value: must have at least one container with name pytorch",
    ]


def test_where_names_are_not_resolved_the_master_is_somewhere_else() -> None:
    """The address that is told to pods can be another one."""
    (first, *_) = wanted(job(), [], Address(host="localhost", port=20001)).pods

    environment = {variable["name"]: variable["value"] for variable in first["spec"]["containers"][0]["env"]}
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"], environment["RANK"]) == ("localhost", "20001", "0")


@pytest.mark.parametrize(
    ("made", "there", "condition"),
    [
        pytest.param(job(), pods("Pending", "Running", "Running"), {"Created"}, id="the master does not run yet"),
        pytest.param(job(), pods("Running", "Pending", "Running"), {"Created", "Running"}, id="the master runs"),
        pytest.param(job(), pods("Succeeded", "Running", "Running"), {"Created", "Succeeded"}, id="the master has succeeded"),
        pytest.param(job(), pods("Running", "Succeeded", "Succeeded"), {"Created", "Running"}, id="the workers have"),
        pytest.param(job(), pods("Running", "Failed:1", "Running"), {"Created", "Failed"}, id="never restarted"),
        pytest.param(job(), pods("Running", "Running*", "Running"), {"Created", "Failed"}, id="being deleted counts as failed"),
        pytest.param(job(policy="OnFailure"), pods("Running", "Failed:1"), {"Created", "Restarting"}, id="restarted"),
        pytest.param(job(policy="ExitCode"), pods("Running", "Failed:137"), {"Created", "Restarting"}, id="code above 128"),
        pytest.param(job(policy="ExitCode"), pods("Running", "Failed:1"), {"Created", "Failed"}, id="code below 128"),
        pytest.param(job(policy="Always", backoffLimit=4), pods("Running", "Running"), {"Created", "Failed"}, id="worn out"),
        pytest.param(job(policy="Always", backoffLimit=9), pods("Running", "Running"), {"Created", "Running"}, id="not yet"),
        pytest.param(job(suspend=True), [], {"Created", "Suspended"}, id="suspended"),
    ],
)
def test_conditions(made: dict[str, Any], there: list[dict[str, Any]], condition: set[str]) -> None:
    """A job is what its master is, and has failed with the first replica that nothing restarts."""
    status = next_status(made, there, NOW)

    assert told(status) == condition


def test_counts_of_replicas() -> None:
    """Of each role those that run, have succeeded and have failed are counted."""
    status = next_status(job(3), pods("Running", "Failed:1", "Succeeded", "Running*"), NOW)

    worker = status["replicaStatuses"]["Worker"]
    assert (worker["active"], worker["succeeded"], worker["failed"]) == (0, 1, 2)


def test_what_is_finished_stays_so() -> None:
    """A job that has failed is not looked at again, and its pods stay by default."""
    failed = job()
    failed["status"] = next_status(failed, pods("Running", "Failed:1", "Running"), NOW)

    assert next_status(failed, pods("Succeeded", "Running", "Running"), NOW + 9) == failed["status"]
    assert wanted(failed, pods("Running"), Address()) == wanted(failed, [], Address())
    assert failed["status"]["completionTime"].startswith("2023-11-14T22:13:20")


@pytest.mark.parametrize(
    ("policy", "deleted"),
    [
        pytest.param("None", [], id="none"),
        pytest.param("Running", ["train-worker-0"], id="running"),
        pytest.param("All", ["train-master-0", "train-worker-0"], id="all"),
    ],
)
def test_clean_up(policy: str, deleted: list[str]) -> None:
    """After its end a job's pods are deleted as its policy says."""
    over = job(1, cleanPodPolicy=policy)
    there = pods("Succeeded", "Running")
    over["status"] = next_status(over, there, NOW)

    assert names(wanted(over, there, Address()).deleted) == deleted


def test_a_replica_that_is_missing_is_created_again_and_one_that_failed_is_not() -> None:
    """Only who is gone, or failed with a code that asks for it, makes room for another."""
    assert names(wanted(job(), pods("Running", "", "Failed:1"), Address()).pods) == ["train-worker-0"]
    retried = wanted(job(policy="ExitCode"), pods("Running", "Failed:137", "Failed:1"), Address())
    assert (names(retried.pods), names(retried.deleted)) == ([], ["train-worker-0"])


def test_suspension_deletes_the_pods() -> None:
    """A suspended job has none, and creates none."""
    found = wanted(job(suspend=True), pods("Running", "Running*"), Address())

    assert (names(found.deleted), found.pods) == (["train-master-0"], ())
