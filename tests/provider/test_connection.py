"""What connections say, and who wins where a task, its job and its connection say different things."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from airflow.sdk import Connection

from rallypoint.backends.credentials import Credentials
from rallypoint.backends.site import Site
from rallypoint.provider.connections.connection import (
    KNOWN,
    ConnectionFieldError,
    Defaults,
    Settings,
    read_extra,
    read_settings,
)
from rallypoint.provider.connections.kubernetes_connection import KubernetesSettings, read_kubernetes
from rallypoint.provider.connections.locating import PlaceError, locate
from rallypoint.provider.place import Place

EXTRA = {
    "platform": "kubernetes",
    "kubernetes_conn_id": "prod",
    "namespace": "training",
    "image": "train:1",
    "account": "nodes",
    "coordinator_account": "coordinators",
    "queue": "gpus",
    "supervisor_image": "tools:1",
    "policies": {"fault_tolerance": {"retry_limit": 5}},
}

SETTINGS = Settings(
    conn_id="train",
    platform="kubernetes",
    kubernetes_conn_id="prod",
    namespace="training",
    token="s3cret-token",
    defaults=Defaults(
        image="train:1",
        account="nodes",
        coordinator_account="coordinators",
        queue="gpus",
        supervisor_image="tools:1",
        policies={"fault_tolerance": {"retry_limit": 5}},
    ),
)


def read(conn: Connection) -> Settings:
    own = {name: getattr(conn, name) for name in ("host", "schema", "login", "password", "port")}
    return read_settings(conn.conn_id, own=own, extra=read_extra(conn.conn_id, conn.extra))


def test_a_connection_in_json():
    """The token is the password, everything else is in the extra."""
    text = json.dumps({"conn_type": "rallypoint", "password": "s3cret-token", "extra": EXTRA})

    assert read(Connection.from_json(text, conn_id="train")) == SETTINGS


def test_a_connection_as_an_uri():
    """What Airflow writes as an URI reads back as the same; policies are JSON in it."""
    there = Connection.from_json(
        json.dumps({"conn_type": "rallypoint", "password": "s3cret-token", "extra": EXTRA}), conn_id="train"
    )
    flat = {**EXTRA, "policies": json.dumps(EXTRA["policies"])}
    by_hand = Connection(conn_id="train", conn_type="rallypoint", password="s3cret-token", extra=json.dumps(flat))

    assert by_hand.get_uri().startswith("rallypoint://:s3cret-token@/?platform=kubernetes&kubernetes_conn_id=prod&")
    for conn in (there, by_hand):
        assert read(Connection.from_uri(conn.get_uri(), conn_id="train")) == SETTINGS


def test_a_connection_that_says_nothing_means_this_machine():
    """As a task without one; what the form leaves empty is nothing, too."""
    empty = {**dict.fromkeys(EXTRA, ""), "home": None, "policies": None}

    assert read_settings("train", own={}, extra={}) == Settings(conn_id="train")
    assert read_settings("train", own={"password": "", "host": ""}, extra=empty) == Settings(conn_id="train")


@pytest.mark.parametrize(
    ("own", "extra", "says"),
    [
        pytest.param(
            {},
            {"platform": "slurm"},
            "platform: 'slurm' is not allowed; expected one of k8s, kuber",
            id="kind",
        ),
        pytest.param(
            {},
            {"platform": "ray"},
            "address: '' is not allowed; expected the URL of the Ray dashboard, such as http://ray-head:8265",
            id="ray",
        ),
        pytest.param(
            {},
            {"platfrom": "local"},
            "extra.platfrom: the value (a text of length 5) is not allowed; expected only pl",
            id="misspelt",
        ),
        pytest.param(
            {},
            {"image": "a:1"},
            "image: 'a:1' is not allowed; expected no value, because the platform is 'local'",
            id="image",
        ),
        pytest.param(
            {"password": "s3cret"},
            {},
            "password: the value is not allowed; expected no value, because the platform is",
            id="token",
        ),
        pytest.param(
            {"host": "k8s"},
            {},
            "host: the value (a text of length 3) is not allowed; expected no value; add this setting to the JSON",
            id="host",
        ),
        pytest.param(
            {},
            {"platform": "kubernetes", "home": "/data"},
            "home: '/data' is not allowed; expected no value, because the platform is",
            id="home",
        ),
        pytest.param(
            {},
            {"platform": "kubernetes", "namespace": "a b"},
            "namespace: the value (a text of length 3) is not allowed; expected a text without white space, also at",
            id="blanks",
        ),
        pytest.param(
            {},
            {"policies": "{"},
            "policies: the value (a text of length 1) is not allowed; expected a JSON object of fault_tol",
            id="json",
        ),
        pytest.param(
            {},
            {"policies": [1]},
            "policies: the value (a list) is not allowed; expected a JSON object of fault_tol",
            id="list",
        ),
        pytest.param(
            {},
            {"policies": {"luck": {}}},
            "policies.luck: the value (an object) is not allowed; expected a JSON",
            id="block",
        ),
        pytest.param(
            {},
            {"policies": {"logs": 3}},
            "policies.logs: the value (a number) is not allowed; expected a JSON",
            id="no block",
        ),
    ],
)
def test_a_field_that_cannot_be(own, extra, says):
    """The connection, the field, the value and what is allowed are named; a secret is not shown."""
    with pytest.raises(ConnectionFieldError) as caught:
        read_settings("train", own=own, extra=extra)

    assert str(caught.value).startswith(f"connection 'train': {says}")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '"s3cret"', "[" * 100_000], ids=["no JSON", "a list", "a text", "nested too deep"])
def test_an_extra_that_is_no_object_is_not_shown(text):
    """It may hold anything."""
    with pytest.raises(ConnectionFieldError, match="expected a JSON object") as caught:
        read_extra("train", text)

    assert "s3cret" not in str(caught.value)


KUBECONFIG = {"clusters": [], "contexts": [], "users": [{"name": "a", "user": {"token": "s3cret"}}]}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        pytest.param({}, KubernetesSettings(conn_id="prod"), id="nothing"),
        pytest.param(
            {"kube_config_path": "/etc/kube", "cluster_context": "eu", "namespace": "ml"},
            KubernetesSettings(conn_id="prod", kubeconfig="/etc/kube", context="eu", namespace="ml"),
            id="a file",
        ),
        pytest.param(
            {"kube_config": KUBECONFIG},
            KubernetesSettings(conn_id="prod", credentials=Credentials(kubeconfig=json.dumps(KUBECONFIG, sort_keys=True))),
            id="a mapping",
        ),
        pytest.param(
            {"kube_config": "clusters: []\ncontexts: []\n"},
            KubernetesSettings(conn_id="prod", credentials=Credentials(kubeconfig="clusters: []\ncontexts: []\n")),
            id="a text",
        ),
        pytest.param(
            {"in_cluster": "True", "disable_verify_ssl": True, "disable_tcp_keepalive": "true"},
            KubernetesSettings(conn_id="prod", credentials=Credentials(in_cluster=True, verify_ssl=False, tcp_keepalive=False)),
            id="flags",
        ),
        pytest.param(
            {"extra__kubernetes__in_cluster": True, "extra__kubernetes__namespace": "old", "namespace": "new"},
            KubernetesSettings(conn_id="prod", namespace="new", credentials=Credentials(in_cluster=True)),
            id="old names",
        ),
        pytest.param({"xcom_sidecar_container_image": "alpine"}, KubernetesSettings(conn_id="prod"), id="fields of others"),
    ],
)
def test_a_kubernetes_connection_means_what_it_means_elsewhere(extra, expected):
    """Its fields are those of the cncf provider."""
    assert read_kubernetes("prod", extra) == expected


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        pytest.param(
            {"in_cluster": "maybe"},
            "in_cluster: the value (a text of length 5) is not allowed; expected true or false",
            id="flag",
        ),
        pytest.param(
            {"in_cluster": True, "kube_config": KUBECONFIG},
            "in_cluster and kube_config: the value is not allowed; expected one of in_cluster, kube_config_path, kube_config",
            id="two ways",
        ),
        pytest.param(
            {"in_cluster": True, "cluster_context": "eu"},
            "cluster_context: 'eu' is not allowed; expected no value",
            id="context",
        ),
        pytest.param(
            {"kube_config": ["s3cret"]},
            "kube_config: the value is not allowed; expected a kubeconfig",
            id="list",
        ),
        pytest.param(
            {"kube_config_path": 3},
            "kube_config_path: the value (a number) is not allowed; expected the path of a kubeconfig",
            id="path",
        ),
    ],
)
def test_a_kubernetes_connection_that_cannot_be(extra, says):
    """It is told before a cluster is asked for anything, and a kubeconfig is not shown."""
    with pytest.raises(ConnectionFieldError) as caught:
        read_kubernetes("prod", extra)

    assert str(caught.value).startswith(f"connection 'prod': {says}")
    assert "s3cret" not in str(caught.value)


PROD = KubernetesSettings(
    conn_id="prod", namespace="theirs", context="eu", kubeconfig="/etc/kube", credentials=Credentials(verify_ssl=False)
)


@pytest.mark.parametrize(
    ("place", "settings", "cluster", "site", "credentials"),
    [
        pytest.param(Place(), None, None, Site(), Credentials(), id="nothing is this machine"),
        pytest.param(
            Place(conn_id="train"),
            SETTINGS,
            PROD,
            Site(kind="kubernetes", namespace="training", context="eu", kubeconfig="/etc/kube"),
            Credentials(token="s3cret-token", verify_ssl=False),
            id="the connection completes that of the cluster",
        ),
        pytest.param(
            Place(conn_id="prod"),
            None,
            PROD,
            Site(kind="kubernetes", namespace="theirs", context="eu", kubeconfig="/etc/kube"),
            Credentials(verify_ssl=False),
            id="the cluster's connection by itself",
        ),
        pytest.param(
            Place(conn_id="train", backend="kubernetes", namespace="mine", context="us"),
            SETTINGS,
            PROD,
            Site(kind="kubernetes", namespace="mine", context="us", kubeconfig="/etc/kube"),
            Credentials(token="s3cret-token", verify_ssl=False),
            id="the task wins",
        ),
        pytest.param(
            Place(conn_id="train", kubeconfig="/my/kube"),
            SETTINGS,
            PROD,
            Site(kind="kubernetes", namespace="training", kubeconfig="/my/kube"),
            Credentials(),
            id="another file is another cluster",
        ),
        pytest.param(
            Place(conn_id="here"),
            Settings(conn_id="here", home="/data"),
            None,
            Site(home="/data"),
            Credentials(),
            id="this machine, elsewhere",
        ),
    ],
)
def test_who_wins(place, settings, cluster, site, credentials):
    """What the task says, over its connection, over the connection of the cluster."""
    located = locate(place, settings, cluster)

    assert (located.site, located.credentials) == (site, credentials)


@pytest.mark.parametrize(
    ("place", "settings", "cluster", "says"),
    [
        pytest.param(
            Place(conn_id="prod", backend="local"),
            None,
            PROD,
            "backend: 'local' is not allowed with connection 'prod', whose platform is 'kubernetes'",
            id="kind of a cluster",
        ),
        pytest.param(
            Place(conn_id="train", backend="kubernetes"),
            Settings(conn_id="train"),
            None,
            "backend: 'kubernetes' is not allowed with connection 'train', whose platform is 'local'",
            id="kind of this machine",
        ),
        pytest.param(
            Place(conn_id="prod", home="/data"),
            None,
            PROD,
            "home: '/data' is not allowed with connection 'prod', whose platform is 'kubernetes'; "
            "expected only the arguments namespace",
            id="a folder of a cluster",
        ),
        pytest.param(
            Place(conn_id="prod", context="eu"),
            None,
            KubernetesSettings(conn_id="prod", credentials=Credentials(in_cluster=True)),
            "cluster_context: 'eu' is not allowed, because connection 'prod' sets in_cluster",
            id="a context of this pod",
        ),
    ],
)
def test_what_disagrees_is_named_on_both_sides(place, settings, cluster, says):
    """Nobody has to guess which of them to change."""
    with pytest.raises(PlaceError) as caught:
        locate(place, settings, cluster)

    assert str(caught.value).startswith(says)


def test_a_deferred_task_keeps_what_finds_its_job_again_and_no_more():
    """Whoever edits the connection meanwhile does not send it to another namespace; how the cluster is reached is read anew."""
    place = Place(conn_id="train", context="us")

    kept = locate(place, SETTINGS, PROD).kept(place)

    assert kept == Place(conn_id="train", backend="kubernetes", namespace="training", context="us")
    assert locate(kept, SETTINGS, PROD) == locate(place, SETTINGS, PROD)


def test_a_place_travels_as_words():
    """Others may stand beside them, and an older version may have written fewer."""
    place = Place(backend="kubernetes", conn_id="train", namespace="ml")

    assert Place.of({**place.words(), "name": "digits", "owner": "try-1"}) == place
    assert Place.of({"backend": "local", "home": None}) == Place(backend="local")


def test_secrets_are_not_shown():
    """Neither what is read nor what is made of it shows them to a log or a debugger."""
    made = locate(Place(conn_id="train"), SETTINGS, read_kubernetes("prod", {"kube_config": KUBECONFIG}))

    assert made.credentials.secret
    assert "s3cret" not in f"{made!r} {SETTINGS!r}"


def test_what_the_page_shows_can_be_used():
    """Its JSON, its URIs and its table of fields."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "connection.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    uris = re.findall(r"^rallypoint://.*$", page, re.MULTILINE)
    table = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))

    made = [read(Connection.from_json(text, conn_id="a")), *(read(Connection.from_uri(uri, conn_id="a")) for uri in uris)]

    assert [settings.platform for settings in made] == ["kubernetes", "kubernetes", "local"]
    assert made[0].defaults.policies == {"fault_tolerance": {"retry_limit": 5}}
    assert (made[1].token, made[1].defaults.image) == ("TOKEN", "registry.example/train:1")
    assert made[2].home == "/data/rallypoint"
    assert table == set(KNOWN)
