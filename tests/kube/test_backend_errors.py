"""What an API server's refusals mean for a submission and for an action."""

from __future__ import annotations

import json

import pytest

from rallypoint.backends.kubernetes.errors import (
    GoneError,
    UnreachableError,
    action_error,
    never_fits,
    refusal,
    submit_error,
)
from tests.kube.pods import status_of

FORBIDDEN = 'pods is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "ml"'
FULL = 'pods "digits" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=8, used: {}, limited: {}'


def quota(used: int, limited: int) -> str:
    gpus = "requests.nvidia.com/gpu="
    return FULL.format(f"{gpus}{used}", f"{gpus}{limited}")


def refused(code, reason, message):
    return refusal("POST /pods", code, json.dumps(status_of(code, reason, message)).encode())


@pytest.mark.parametrize(
    ("code", "reason", "message", "said"),
    [
        pytest.param(404, "NotFound", 'namespaces "ml" not found', "namespace: 'ml' not found on this cluster", id="namespace"),
        pytest.param(404, "NotFound", "the server could not find the requested resource", "install its CRD", id="CRD"),
        pytest.param(403, "Forbidden", FORBIDDEN, "rallypoint manifests rbac", id="forbidden"),
        pytest.param(403, "Forbidden", quota(0, 4), "exceeds the quota of namespace ml", id="quota"),
        pytest.param(
            400,
            "BadRequest",
            'admission webhook "x.y" denied the request: no',
            "an admission check of the cluster",
            id="webhook",
        ),
        pytest.param(
            403,
            "Forbidden",
            'pods "d" is forbidden: violates PodSecurity "restricted:latest"',
            "an admission check",
            id="security",
        ),
        pytest.param(
            422, "Invalid", "spec.x: Required value", "rejected by the API server: spec.x: Required value", id="invalid"
        ),
        pytest.param(401, "Unauthorized", "Unauthorized", "log in again", id="unknown"),
    ],
)
def test_a_refused_submission_says_what_is_wrong(code, reason, message, said):
    """Namespace, kind, permission, quota, webhook and schema are told apart."""
    error = submit_error(refused(code, reason, message), namespace="ml", what="the node's Pod")

    assert said in str(error)


@pytest.mark.parametrize(
    ("error", "fatal", "waits"),
    [
        pytest.param(refused(422, "Invalid", "spec.x: Required value"), True, False, id="it is wrong"),
        pytest.param(refused(403, "Forbidden", FORBIDDEN), True, False, id="it is forbidden"),
        pytest.param(refused(403, "Forbidden", quota(8, 16)), False, True, id="it will have room"),
        pytest.param(refused(403, "Forbidden", quota(0, 4)), True, False, id="it never has room"),
        pytest.param(refused(409, "Conflict", "try again"), False, False, id="a conflict"),
        pytest.param(refused(500, "InternalError", "etcd"), False, False, id="the server is ill"),
        pytest.param(refused(429, "TooManyRequests", "later"), False, False, id="the server is busy"),
        pytest.param(UnreachableError("no answer"), False, False, id="no server"),
    ],
)
def test_what_cannot_be_created_now_may_be_later(error, fatal, waits):
    """Only what trying again cannot help is fatal, and waiting for room is told apart."""
    told = action_error(error, what="node 3")

    assert (told.fatal, told.waits) == (fatal, waits)
    assert str(told).startswith("node 3: ")


@pytest.mark.parametrize(
    ("requested", "limited", "never"),
    [
        pytest.param("cpu=500m", "cpu=1", False, id="thousandths"),
        pytest.param("cpu=2", "cpu=1500m", True, id="more than all"),
        pytest.param("memory=2Gi", "memory=2000Mi", True, id="binary"),
        pytest.param("memory=2G", "memory=2Gi", False, id="decimal and binary"),
        pytest.param("pods=1,cpu=1", "pods=9,cpu=500m", True, id="one of several"),
        pytest.param("memory=lots", "memory=1", False, id="no quantity"),
    ],
)
def test_what_no_quota_will_ever_allow(requested, limited, never):
    """The quota's own sentence says how much it would give to anybody."""
    assert (
        never_fits(f'pods "d" is forbidden: exceeded quota: q, requested: {requested}, used: cpu=0, limited: {limited}')
        is never
    )


def test_an_answer_that_is_none_of_the_servers_is_told_as_it_is():
    """A proxy's page is shown, shortened."""
    error = refusal("GET /pods", 502, b"<html>Bad gateway</html>")

    assert (error.status, error.said) == (502, "<html>Bad gateway</html>")
    assert error.transient


def test_history_that_is_gone_is_an_error_of_its_own():
    """Whoever watches lists anew."""
    assert isinstance(refused(410, "Expired", "too old resource version"), GoneError)
