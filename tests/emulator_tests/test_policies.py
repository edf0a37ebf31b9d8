"""Quotas and pod security: what a namespace does not allow is refused when it is created."""

from __future__ import annotations

import pytest

from tests.emulator.quantities import quantity, requests_of
from tests.emulator_tests.calls import config_map, pod

SECURE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def sized(name, **amounts):
    return pod(name, container={"resources": {"limits": amounts}})


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", 1.0),
        ("500m", 0.5),
        ("2Ki", 2048.0),
        ("1.5G", 1.5e9),
        ("1e3", 1000.0),
        ("", None),
        ("1 Gi", None),
        ("much", None),
        (2, 2.0),
    ],
)
def test_quantities_are_read(text, amount):
    """As the API writes them; what is none is none."""
    assert quantity(text) == amount


def test_a_pod_asks_for_its_containers_or_its_largest_start():
    """Sidecars run beside all that follow; other init containers run alone."""

    def size(cpu, **more):
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {"initContainers": [size("1", restartPolicy="Always"), size("5")], "containers": [size("2"), size("500m")]}

    assert requests_of(spec) == {"cpu": 6.0}


def test_a_quota_counts_pods_and_what_they_ask_for(calls):
    """403 with the amounts; pods that have ended are not counted."""
    calls.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2", "requests.cpu": "3"}}})
    assert calls.create("pods", sized("a", cpu="2"))[0] == 201

    code, status = calls.create("pods", sized("b", cpu="2"))
    assert (code, status["reason"]) == (403, "Forbidden")
    assert "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=2, limited: requests.cpu=3" in status["message"]

    calls.patch("pods", "a", {"status": {"phase": "Failed"}}, subresource="status")
    assert calls.create("pods", sized("b", cpu="2"))[0] == 201


def test_a_quota_counts_objects(calls):
    """By their plural, or as count/PLURAL."""
    calls.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "1"}}})

    assert [calls.create("configmaps", config_map(name))[0] for name in ("a", "b")] == [201, 403]


def test_a_pod_needs_its_account(calls):
    """403 names the service account that is not there."""
    code, status = calls.create("pods", pod("one", serviceAccountName="nobody"))

    assert code == 403
    assert status["message"].endswith('serviceaccount "nobody" not found')


@pytest.fixture
def restricted(calls):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{calls.namespace}"
    patched = calls.server.request("PATCH", path, {"metadata": {"labels": labels}}, content="application/merge-patch+json")
    assert patched[0] == 200
    return calls


def test_a_restricted_namespace_takes_a_careful_pod(restricted):
    """Non-root, without escalation, capabilities or host paths."""
    assert restricted.create("pods", pod("one", container={"securityContext": SECURE}))[0] == 201


@pytest.mark.parametrize(
    ("container", "spec", "word"),
    [
        pytest.param({}, {}, "allowPrivilegeEscalation", id="nothing said"),
        pytest.param({"securityContext": {**SECURE, "runAsNonRoot": False}}, {}, "runAsNonRoot", id="root"),
        pytest.param({"securityContext": {**SECURE, "capabilities": {}}}, {}, "capabilities", id="capabilities"),
        pytest.param({"securityContext": {**SECURE, "seccompProfile": None}}, {}, "seccompProfile", id="no profile"),
        pytest.param({"securityContext": SECURE}, {"hostNetwork": True}, "hostNetwork", id="the host's network"),
        pytest.param(
            {"securityContext": SECURE}, {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath", id="a host path"
        ),
    ],
)
def test_a_restricted_namespace_refuses_others(restricted, container, spec, word):
    """403 with what is wrong."""
    code, status = restricted.create("pods", pod("one", container=container, **spec))

    assert code == 403
    assert 'violates PodSecurity "restricted:latest"' in status["message"]
    assert word in status["message"]
