"""The button that tests a connection says what is missing."""

from __future__ import annotations

import json
import socket
import time

import pytest

from rallypoint.backends.contract import BackendError
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


URL = "http://u:S3CRETVALUE@ray:8265"
RAY = {"platform": "ray", "address": "http://ray:8265"}
ENVIRONMENT = {"env_vars": {"DB_URL": "postgres://u:S3CRETVALUE@db/x"}}


@pytest.mark.parametrize(
    ("field", "conn"),
    [
        pytest.param("address", {"extra": {"platform": "ray", "address": f"{URL} "}}, id="a space after the address"),
        pytest.param("address", {"extra": {"platform": "ray", "address": f"{URL}\n"}}, id="a line end after the address"),
        pytest.param("address", {"extra": {"platform": "ray", "address": "http://ray/?token=S3CRETVALUE"}}, id="a query"),
        pytest.param("address", {"extra": {"platform": "ray", "address": "http://ray:S3CRETVALUE"}}, id="a port"),
        pytest.param("address", {"extra": {"address": URL}}, id="an address without platform"),
        pytest.param("address", {"extra": {"platform": "kubernetes", "address": URL}}, id="an address of Kubernetes"),
        pytest.param("runtime_env", {"extra": {"runtime_env": ENVIRONMENT}}, id="runtime_env without platform"),
        pytest.param("runtime_env", {"extra": {"platform": "kubernetes", "runtime_env": ENVIRONMENT}}, id="of Kubernetes"),
        pytest.param("runtime_env", {"extra": {**RAY, "runtime_env": "{S3CRETVALUE"}}, id="runtime_env that is no JSON"),
        pytest.param("verify_ssl", {"extra": {**RAY, "verify_ssl": "S3CRETVALUE"}}, id="verify_ssl"),
        pytest.param("ca_cert", {"extra": {"ca_cert": "---S3CRETVALUE"}}, id="ca_cert without platform"),
        pytest.param("storage", {"extra": {**RAY, "storage": "s3://KEY:S3CRETVALUE@bucket/x"}}, id="storage"),
        pytest.param("storage", {"extra": {"storage": "s3://KEY:S3CRETVALUE@bucket/x"}}, id="storage without platform"),
        pytest.param("home", {"extra": {"platform": "kubernetes", "home": URL}}, id="home"),
        pytest.param("host", {"host": URL, "extra": RAY}, id="host"),
        pytest.param("login", {"login": "S3CRETVALUE", "extra": RAY}, id="login"),
        pytest.param("schema", {"schema": "S3CRETVALUE", "extra": RAY}, id="schema"),
        pytest.param("password", {"password": "S3CRETVALUE\n", "extra": RAY}, id="a line end after the token"),
        pytest.param("policies", {"extra": {"policies": '{"logs": S3CRETVALUE'}}, id="policies"),
        pytest.param("policies", {"extra": {"policies": {"logs": {"dir": {"S3CRETVALUE": "S3CRETVALUE"}}}}}, id="a policy"),
        pytest.param("arguments", {"extra": {"arguments": "S3CRETVALUE"}}, id="arguments"),
        pytest.param("arguments", {"extra": {"arguments": {"max_restarts": "S3CRETVALUE"}}}, id="an argument"),
        pytest.param("extra.token", {"extra": {"token": "S3CRETVALUE"}}, id="a field that does not exist"),
        pytest.param("a field", {"extra": {"token: S3CRETVALUE": ""}}, id="a field with a strange name"),
    ],
)
def test_an_error_shows_no_credential_of_a_connection(monkeypatch, field, conn):
    """Users paste them into wrong fields, and all who see the log of a task would see them."""
    monkeypatch.setenv("AIRFLOW_CONN_TRAIN", json.dumps({"conn_type": "rallypoint", **conn}))
    hook = RallypointHook("train")

    fine, told = hook.test_connection()
    with pytest.raises(BackendError) as located:
        hook.locate()
    with pytest.raises(BackendError) as opened:
        hook.get_conn()

    assert not fine
    assert told.startswith(f"connection 'train': {field}")
    assert "is not allowed" in told
    assert str(located.value) == str(opened.value) == told
    assert "S3CRET" not in told


USERS = {"basic": {"username": "u", "password": "S3CRETVALUE"}, "token": {"token": "x"}, "line": {"token": "S3CRETVALUE\n"}}


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        pytest.param(
            {"kube_config_path": {"a": "S3CRETVALUE"}}, "kube_config_path: the value (an object)", id="a mapping as path"
        ),
        pytest.param({"kube_config_path": "users: [{S3CRETVALUE}]"}, "kube_config_path: the value", id="a kubeconfig as path"),
        pytest.param({"kube_config_path": " /S3CRETVALUE"}, "kube_config_path: the value", id="a space before a path"),
        pytest.param({"kube_config": f"a: !!float {'1:' * 400}1"}, "kube_config: the value is not allowed", id="base 60"),
        pytest.param({"kube_config": "users: [S3CRETVALUE"}, "kube_config: the value is not allowed", id="no kubeconfig"),
        pytest.param({"server": URL, "user": "basic"}, "kubeconfig: server: the value is not", id="passwords in two places"),
        pytest.param({"server": URL, "user": "token"}, "kubeconfig: server: the value is not", id="a password and a token"),
        pytest.param(
            {"server": "https://127.0.0.1:1", "user": "line"}, "kubeconfig: token: the value", id="a token with a line end"
        ),
    ],
)
def test_an_error_shows_no_credential_of_a_kubernetes_connection(connect, extra, says):
    """It is an error in words, and no traceback of the client."""
    if "server" in extra:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": extra["server"]}}],
            "contexts": [{"name": "a", "context": {"cluster": "c", "user": "x"}}],
            "current-context": "a",
            "users": [{"name": "x", "user": USERS[extra["user"]]}],
        }
        extra = {"kube_config": json.dumps(config)}

    fine, told = connect(extra, "kubernetes").test_connection()

    assert not fine
    assert says in told
    assert "S3CRET" not in told


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
