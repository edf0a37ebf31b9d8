from __future__ import annotations

from typing import Any

import pytest

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import read_pod
from rallypoint.backends.kubernetes.leaving import trouble_of
from rallypoint.backends.kubernetes.manifests.supervisor import supervisor_pod
from rallypoint.wire.python import run_module
from tests.kube.manifests import IMAGE, REF, blueprint_of, unrestricted
from tests.kube.pods import pod, running, waiting

FULL: dict[str, Any] = {
    "image_pull_secrets": ["pull"],
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "pod_env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    "env_from": [{"secretRef": {"name": "script-secrets"}}],
    "queue": "team-queue",
    "resources": {"gpus": 8},
    "volumes": [{"name": "env", "hostPath": {"path": "/opt/env"}}],
    "volume_mounts": [{"name": "env", "mountPath": "/opt/env"}],
    "python": ["/opt/env/bin/python"],
}


def supervisor_of(*, image: str = "", account: str = "", **fields):
    drawn = blueprint_of(**fields)
    return supervisor_pod(REF, spec=drawn.job, plan=drawn.plan, image=image, account=account)


def test_it_supervises_its_job_from_inside_of_the_cluster():
    """Its command names the job and its namespace, and it ends well however the job ends: it is restarted when it fails."""
    made = supervisor_of()
    (container,) = made["spec"]["containers"]

    words = "supervise digits --backend kubernetes --namespace team-a --ignore-outcome"
    assert container["command"] == [*run_module("rallypoint.cli.main", *words.split(), python=("python",))]
    assert made["spec"]["restartPolicy"] == "OnFailure"
    assert (made["spec"]["serviceAccountName"], made["spec"]["automountServiceAccountToken"]) == ("rallypoint-supervisor", True)


def test_the_job_owns_it_and_it_is_no_part_of_the_job():
    """It goes when the job's ConfigMap goes, and nobody takes it for a node or a coordinator."""
    made = supervisor_of()

    assert made["metadata"]["name"] == names.supervisor_pod(REF)
    assert made["metadata"]["ownerReferences"][0]["uid"] == REF.owner
    assert read_pod(made["metadata"]["labels"]) is None


def test_it_runs_where_the_job_may_and_needs_nothing_of_it():
    """Place, image and proxies are the job's; its secrets, queue, machines' GPUs and token are not."""
    made = supervisor_of(**FULL)
    (container,) = made["spec"]["containers"]

    assert made["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert made["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert container["command"][0] == "/opt/env/bin/python"
    assert [variable for variable in container["env"] if "value" in variable] == [
        {"name": "HTTPS_PROXY", "value": "http://proxy"}
    ]
    assert "envFrom" not in container
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/opt/env", "/tmp"}
    assert {volume["name"] for volume in made["spec"]["volumes"]} == {"env", "rallypoint-tmp"}
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert not any("kueue" in key for key in (*made["metadata"]["labels"], *made["metadata"].get("annotations", ())))


@pytest.mark.parametrize(
    ("given", "image", "account"),
    [
        pytest.param({}, IMAGE, "rallypoint-supervisor", id="by default the job's image"),
        pytest.param({"image": "tools:1", "account": "watcher"}, "tools:1", "watcher", id="others, by name"),
    ],
)
def test_image_and_account(given, image, account):
    """Both may be chosen."""
    made = supervisor_of(**given)

    assert made["spec"]["containers"][0]["image"] == image
    assert made["spec"]["serviceAccountName"] == account


def test_a_restricted_namespace_accepts_it():
    """It is as safe as the pods of the job."""
    assert list(unrestricted(supervisor_of())) == []


@pytest.mark.parametrize(
    ("found", "trouble"),
    [
        pytest.param(pod(containers=(running(),)), "", id="it runs"),
        pytest.param(pod(phase="Pending", containers=()), "", id="it waits for a machine"),
        pytest.param(pod(phase="Pending", containers=(waiting("ContainerCreating"),)), "", id="it is being made"),
        pytest.param(
            pod(phase="Pending", containers=(waiting("ErrImagePull", "no such image"),)),
            "does not start (ErrImagePull: no such image)",
            id="no image",
        ),
        pytest.param(
            pod(containers=(waiting("CrashLoopBackOff"),)),
            "does not start (CrashLoopBackOff: no message)",
            id="it ends at once",
        ),
        pytest.param(pod(phase="Failed", reason="Evicted"), "has ended (Failed Evicted)", id="it was evicted"),
        pytest.param(pod(deleting=True), "has ended (Running)", id="being deleted"),
        pytest.param(None, "was deleted", id="it is not there"),
    ],
)
def test_a_supervisor_that_supervises_nothing(found, trouble):
    """What is for ever is told from what passes."""
    assert trouble_of(found) == trouble
