"""The troubles that a test can make between a client and the server."""

from __future__ import annotations

import http.client
import time
import urllib.error

import pytest

from tests.emulator_tests.calls import config_map


@pytest.fixture(autouse=True)
def healed(server):
    yield
    server.heal()


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [
        pytest.param("too_many", 429, "TooManyRequests", id="too many"),
        pytest.param("error", 500, "InternalError", id="an error"),
        pytest.param("unavailable", 503, "ServiceUnavailable", id="unavailable"),
        pytest.param("forbid", 403, "Forbidden", id="forbidden"),
        pytest.param("deny", 403, "Forbidden", id="denied by a webhook"),
    ],
)
def test_answers_can_be_refusals(server, calls, kind, code, reason):
    """Nothing is done then, and all is well when the trouble is over."""
    server.fault(kind=kind, times=1)

    answered, status = calls.create("configmaps", config_map("one"))

    assert (answered, status["reason"]) == (code, reason)
    assert calls.create("configmaps", config_map("one"))[0] == 201


def test_conflicts_are_for_changes(server, calls):
    """A share of the updates is refused, creations and reads are not."""
    server.fault(kind="conflict", share=0.5)
    calls.create("configmaps", config_map("one"))

    codes = [calls.patch("configmaps", "one", {"data": {"n": str(n)}})[0] for n in range(40)]

    assert 5 < codes.count(409) < 35
    assert set(codes) == {200, 409}
    assert calls.get("configmaps", "one")[0] == 200


def test_a_fault_may_be_of_some_requests_only(server, calls):
    """By verb and resource, and by user."""
    server.fault(kind="error", verbs=["create"], resources=["secrets"])
    server.fault(kind="error", users=["somebody-else"])

    assert calls.create("configmaps", config_map("one"))[0] == 201
    assert calls.create("secrets", {"metadata": {"name": "one"}})[0] == 500


def test_an_outage_hangs_up(server, calls):
    """No answer comes at all, until it is over."""
    server.fault(kind="outage", times=1)

    with pytest.raises((urllib.error.URLError, ConnectionError)):
        calls.listed("configmaps")
    assert calls.listed("configmaps")["kind"] == "ConfigMapList"


def test_an_answer_can_be_lost(server, calls):
    """The write is done, and the client does not know."""
    server.fault(kind="lost_answer", times=1)

    with pytest.raises((urllib.error.URLError, ConnectionError)):
        calls.create("configmaps", config_map("one"))
    assert calls.get("configmaps", "one")[0] == 200


def test_answers_can_be_late(server, calls):
    """By so many seconds."""
    server.fault(kind="latency", seconds=0.5, times=1)
    began = time.monotonic()

    calls.listed("configmaps")

    assert time.monotonic() - began >= 0.5


def test_streams_can_be_cut(server, calls):
    """A watch ends without a proper end, long before its time."""
    server.fault(kind="cut", seconds=0.2)

    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        calls.watch("configmaps", timeoutSeconds=60)


def test_an_unknown_fault_is_refused(server):
    """With the names of those that there are."""
    with pytest.raises(ValueError, match="no fault is called 'fire'"):
        server.fault(kind="fire")


def test_requests_are_counted(server, calls):
    """By user, verb and resource."""

    def count():
        return sum(one["count"] for one in server.requests() if (one["verb"], one["resource"]) == ("get", "leases"))

    before = count()
    calls.get("leases", "one")

    assert count() == before + 1
