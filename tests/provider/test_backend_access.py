"""From a connection's name to the place that is meant, through Airflow."""

from __future__ import annotations

import json

import pytest
from airflow.sdk._shared.secrets_masker import redact

from rallypoint.backends.contract import BackendError
from rallypoint.backends.site import Site
from rallypoint.provider import backend_access
from rallypoint.provider.connections.masking import secrets_of
from rallypoint.provider.place import Place
from tests.emulator.running import kubeconfig

CANARY = "canary-1f0c9e3b"


@pytest.fixture
def connections(monkeypatch):
    """Connections as variables of the environment, which is where Airflow looks first."""

    def add(name: str, conn_type: str, extra: object = None, password: str = "") -> None:
        text = {"conn_type": conn_type, "extra": extra or {}, **({"password": password} if password else {})}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(text))

    return add


def test_a_connection_and_the_cluster_that_it_names(connections):
    """Both are read by Airflow, and what is secret of them is masked from then on."""
    config = kubeconfig("https://cluster:6443", CANARY)
    connections("prod", "kubernetes", {"kube_config": config})
    connections("train", "rallypoint", {"platform": "kubernetes", "kubernetes_conn_id": "prod", "namespace": "ml"})

    located = backend_access.resolve(Place(conn_id="train"))

    assert (located.site, located.credentials.kubeconfig) == (Site(kind="kubernetes", namespace="ml"), config)
    assert CANARY not in str(redact(f"the token is {CANARY}"))


def test_a_place_without_a_connection_asks_nobody():
    """A task that names none needs no Airflow to say where it is."""
    assert backend_access.resolve(Place(home="/data")).site == Site(home="/data")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param(
            "nowhere", "conn_id: Airflow connection 'nowhere' not found; create this connection, or choose another", id="none"
        ),
        pytest.param(
            "db",
            "connection 'db': its type 'postgres' is not allowed; expected rallypoint, or k",
            id="type",
        ),
        pytest.param(
            "astray",
            "connection 'astray': kubernetes_conn_id: 'db' has type 'postgres'; expected a connection of type k",
            id="type of the cluster's",
        ),
        pytest.param(
            "wrong",
            "connection 'wrong': platform: 'slurm' is not allowed; expected one of",
            id="field",
        ),
    ],
)
def test_a_connection_that_cannot_be_used(connections, name, says):
    """What is wrong is named; whoever asks may try again when somebody has mended it."""
    connections("db", "postgres")
    connections("astray", "rallypoint", {"platform": "kubernetes", "kubernetes_conn_id": "db"})
    connections("wrong", "rallypoint", {"platform": "slurm"})

    with pytest.raises(BackendError) as caught:
        backend_access.resolve(Place(conn_id=name))

    assert str(caught.value).startswith(says)


USER = {
    "token": f"{CANARY}-token",
    "password": f"{CANARY}-password",
    "client-key-data": f"{CANARY}-key",
    "auth-provider": {"config": {"refresh-token": f"{CANARY}-refresh"}},
    "exec": {"command": "login", "args": ["--region", "europe"], "env": [{"name": "ACCESS", "value": f"{CANARY}-env"}]},
}


@pytest.mark.parametrize("text", [False, True], ids=["a mapping", "a text"])
def test_what_of_a_kubeconfig_is_masked(text):
    """All that authenticates somebody; not what a log is full of."""
    cluster = {"server": "https://cluster:6443", "proxy-url": f"http://proxy-user:{CANARY}%2Fproxy@proxy:3128"}
    config = {"clusters": [{"name": "europe", "cluster": cluster}], "users": [{"name": "europe", "user": USER}]}
    value = json.dumps(config) if text else config

    found = set(secrets_of(json.dumps({"namespace": "training", "kube_config": value})))

    proxy = {f"proxy-user:{CANARY}%2Fproxy", f"{CANARY}%2Fproxy", f"{CANARY}/proxy"}
    words = ("token", "password", "key", "refresh", "env")
    assert found - {value if text else ""} == {f"{CANARY}-{word}" for word in words} | proxy


@pytest.mark.parametrize("extra", ["", "{", "[]", '{"kube_config": "a: [b"}', '{"kube_config": {"users": 3}}', "[" * 100_000])
def test_what_cannot_be_read_is_not_stumbled_over(extra):
    """Whoever reads the field says what is wrong with it."""
    assert all(text in extra for text in secrets_of(extra))
