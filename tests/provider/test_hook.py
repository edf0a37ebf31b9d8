"""The button that tests a connection says what is missing."""

from __future__ import annotations

import json
import socket
import time

import pytest

from rallypoint.backends.kubernetes.names import SUPERVISOR_ROLE
from rallypoint.backends.kubernetes.rbac import SUPERVISOR, rbac
from rallypoint.provider.connections.hook import RallypointHook
from tests.emulator.options import Options
from tests.emulator.running import kubeconfig, running
from tests.kube.stage import KubernetesStage


@pytest.fixture
def connect(monkeypatch):
    """The hook of a connection."""

    def connect(extra, conn_type="rallypoint", password=""):
        text = {"conn_type": conn_type, "extra": extra, **({"password": password} if password else {})}
        monkeypatch.setenv("AIRFLOW_CONN_TRAIN", json.dumps(text))
        return RallypointHook("train")

    return connect


@pytest.fixture
def guarded(tmp_path):
    """A cluster that enforces Roles, and in it a namespace with somebody who may nothing."""
    with running(Options(rbac=True)) as cluster:
        stage = KubernetesStage(tmp_path, cluster)
        stage.ask("POST", stage.path("serviceaccounts"), {"metadata": {"name": "nobody"}})
        yield stage


def grant(stage, *, leave_out=()):
    for manifest in rbac(stage.namespace):
        if manifest["kind"] == "Role" and manifest["metadata"]["name"] == SUPERVISOR_ROLE:
            manifest["rules"] = [rule for rule in manifest["rules"] if rule["resources"][0] not in leave_out]
        group = manifest["apiVersion"]
        root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
        stage.ask("POST", f"{root}/namespaces/{stage.namespace}/{manifest['kind'].lower()}s", manifest)


def as_(stage, account):
    token = stage.emulator.token(account=account, namespace=stage.namespace)
    return {"kube_config": kubeconfig(stage.emulator.url, token), "namespace": stage.namespace}


def test_this_machine_can_run_jobs(connect, tmp_path):
    """The home can be written, and agents find what they import."""
    pytest.importorskip("torch")

    assert connect({"home": str(tmp_path / "home")}).test_connection() == (
        True,
        f"Connection works: jobs run on this machine, in {tmp_path}/home",
    )


def test_a_home_that_cannot_be_written_is_named(connect, tmp_path):
    """And so is the field."""
    (tmp_path / "file").write_text("")

    fine, told = connect({"home": str(tmp_path / "file" / "home")}).test_connection()

    assert not fine
    assert told.startswith("home: ")
    assert str(tmp_path / "file") in told


def test_a_wrong_field_is_told_before_anything_is_asked(connect):
    """The text is that of the task's error."""
    assert connect({"platform": "slurm"}).test_connection() == (
        False,
        ("connection 'train': platform: 'slurm' is not allowed; expected one of k8s, kubernetes, local, pyk8s, ray"),
    )


@pytest.mark.live
def test_a_cluster_where_all_is_granted(connect, guarded):
    """Jobs can run; what only other kinds need is told, and is no failure."""
    grant(guarded)

    fine, told = connect(as_(guarded, SUPERVISOR_ROLE), "kubernetes").test_connection()

    assert fine
    assert told.startswith(f"Connection works: jobs run on the cluster, in namespace {guarded.namespace}; ")
    assert "AppWrapper: the AppWrapper controller is not installed (required only for jobs of kind appwrapper)" in told
    assert "PyTorchJob: the training operator is not installed" in told


@pytest.mark.live
def test_each_right_that_is_missing_is_named(connect, guarded):
    """The verbs, the resource, what it is for, and the command that prints the Role."""
    grant(guarded, leave_out=("pods/log", "leases"))

    fine, told = connect(as_(guarded, SUPERVISOR_ROLE), "kubernetes").test_connection()
    nothing_fine, all_told = connect(as_(guarded, "nobody"), "kubernetes").test_connection()

    where = f"not allowed in namespace {guarded.namespace}"
    assert not fine
    assert [sentence for sentence in told.split("; ") if sentence.startswith("not allowed")] == [
        f"{where}: get pods/log (read logs, and save the last lines of a pod before its deletion)",
        (
            f"{where}: create, delete, get, patch leases.coordination.k8s.io (write its heartbeat and read the "
            "heartbeats of other supervisors)"
        ),
    ]
    assert f"`rallypoint manifests rbac --namespace {guarded.namespace}` prints the required Role" in told
    assert not nothing_fine
    assert all_told.count("not allowed in namespace") == len(SUPERVISOR)


@pytest.mark.live
def test_a_cluster_that_does_not_know_us_or_is_not_there(connect, guarded):
    """A wrong token, a namespace that is not there, and a server that does not answer are three sentences."""
    config = kubeconfig(guarded.emulator.url, "of-nobody")
    admin = kubeconfig(guarded.emulator.url, guarded.emulator.admin_token)
    away = kubeconfig("http://127.0.0.1:9", "x")

    answers = [
        connect({"kube_config": config}, "kubernetes").test_connection(),
        connect({"kube_config": admin, "namespace": "nowhere"}, "kubernetes").test_connection(),
        connect({"kube_config": away}, "kubernetes").test_connection(),
    ]

    assert [fine for fine, _ in answers] == [False, False, False]
    assert "rejected the credentials; log in again" in answers[0][1]
    assert answers[1][1].startswith("namespace: 'nowhere' not found on this cluster; create it or choose another")
    assert "no answer from" in answers[2][1]


@pytest.mark.live
def test_the_token_of_the_connection_counts(connect, guarded, monkeypatch):
    """It takes the place of what the kubeconfig has, and is nowhere in what is told."""
    grant(guarded)
    right = guarded.emulator.token(account=SUPERVISOR_ROLE, namespace=guarded.namespace)
    wrong = kubeconfig(guarded.emulator.url, "of-nobody")
    cluster = {"conn_type": "kubernetes", "extra": {"kube_config": wrong}}
    monkeypatch.setenv("AIRFLOW_CONN_PROD", json.dumps(cluster))
    extra = {"platform": "kubernetes", "kubernetes_conn_id": "prod", "namespace": guarded.namespace}

    fine, told = connect(extra, password=right).test_connection()

    assert fine, told
    assert right not in told


def test_a_silent_server_ends_the_test_in_time(connect):
    """The button keeps a thread of Airflow's API server busy for as long as the test lasts."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = kubeconfig(f"http://127.0.0.1:{silent.getsockname()[1]}", "x")
        connect({"kube_config": config}, "kubernetes")
        begun = time.monotonic()
        fine, told = RallypointHook("train", patience=1.0).test_connection()

    assert (fine, told) == (False, "The API server of the cluster did not answer all requests within 1 s")
    assert time.monotonic() - begun < 5
