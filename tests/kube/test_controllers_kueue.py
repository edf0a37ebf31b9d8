"""Queues: who is admitted, and what becomes of plain pods and their groups, as Kueue has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulator.controllers.kueue_groups import FINALIZER, GROUP, QUEUE, Group, gated, gated_pod, look_at
from tests.emulator.controllers.kueue_quota import Claim, rule
from tests.emulator.controllers.webhooks import WEBHOOKS
from tests.emulator.errors import ApiError
from tests.emulator.resources import BUILTIN, Resource
from tests.kube.wrappers import pytorchjob, wrapper

TOTAL, SHAPE, RETRIABLE = (f"kueue.x-k8s.io/{name}" for name in ("pod-group-total-count", "role-hash", "retriable-in-group"))
WRAPPER = Resource(plural="appwrappers", kind="AppWrapper", group="workload.codeflare.dev", version="v1beta2")
POD = next(resource for resource in BUILTIN if resource.kind == "Pod")


def pod(name: str, phase: str = "Pending", *, total: int = 2, shape: str = "node", **more: Any) -> dict[str, Any]:
    """Return a pod of a group as Kueue's webhook has left it; `opened`, `deleting` and `final` change what they say."""
    made = gated_pod(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {QUEUE: "team", **({} if more.get("single") else {GROUP: "train"})},
                "annotations": {TOTAL: str(total), SHAPE: shape} | ({RETRIABLE: "false"} if more.get("final") else {}),
                "creationTimestamp": more.get("created", "2026-01-01T00:00:00Z"),
            },
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]},
            "status": {"phase": phase},
        }
    )
    if phase != "Pending" or more.get("opened"):
        made["spec"] |= {"schedulingGates": [], "nodeName": "host"}
    if more.get("deleting"):
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    return made


GROUP_OF_TWO = Group(queue="team", shapes={"node": 2}, needs={"pods": 2.0}, created="2026", admitted=True)


def names(found: tuple[dict[str, Any], ...]) -> list[str]:
    return [each["metadata"]["name"] for each in found]


def test_a_pod_of_a_queue_is_gated() -> None:
    """The webhook gates it once, marks it and keeps it with a finalizer; it leaves other pods alone."""
    body: dict[str, Any] = {"metadata": {"name": "a", "labels": {QUEUE: "team"}}, "spec": {"containers": []}}
    WEBHOOKS["kueue"](POD, body)
    WEBHOOKS["kueue"](POD, body)

    assert gated(body)
    assert len(body["spec"]["schedulingGates"]) == 1
    assert body["metadata"]["finalizers"] == [FINALIZER]
    other: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {}}
    WEBHOOKS["kueue"](POD, other)
    assert other == {"metadata": {"name": "a"}, "spec": {}}


def test_a_wrapper_of_a_queue_begins_suspended() -> None:
    """Whatever it says itself."""
    body = wrapper()
    body["metadata"] |= {"namespace": "default", "labels": {QUEUE: "team"}}
    body["spec"]["suspend"] = False
    WEBHOOKS["kueue"](WRAPPER, body)

    assert body["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        pytest.param([{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}], "0 pod sets", id="33 no pods"),
        pytest.param([pytorchjob(2)] * 5, "10 pod sets", id="33 too many"),
        pytest.param([{"apiVersion": "x/v1", "kind": "AppWrapper"}], "a wrapper in a wrapper", id="33 nested"),
        pytest.param([pytorchjob() | {"metadata": {"name": "a", "namespace": "b"}}], "namespace b", id="33 elsewhere"),
    ],
)
def test_wrappers_that_the_webhook_refuses(templates: list[dict[str, Any]], message: str) -> None:
    """A wrapper that cannot be run is refused with the reason."""
    body = wrapper(*templates)
    body["metadata"]["namespace"] = "default"

    with pytest.raises(ApiError, match=message):
        WEBHOOKS["appwrapper"](WRAPPER, body)


def test_a_group_waits_until_it_is_whole() -> None:
    """Before all of its pods are there it is no workload; then it is one, for all that its pods need."""
    assert look_at(None, [pod("a")]).group is None

    whole = look_at(None, [pod("a"), pod("b", shape="coordinator")])
    assert whole.group == Group(
        queue="team",
        shapes={"node": 1, "coordinator": 1},
        needs={"cpu": 1.0, "pods": 2.0},
        created="2026-01-01T00:00:00Z",
        admitted=False,
    )
    assert whole.open == ()


def test_the_gates_of_an_admitted_group_are_opened() -> None:
    """Those of pods that came later, too."""
    assert names(look_at(GROUP_OF_TWO, [pod("a", "Running"), pod("b")]).open) == ["b"]


def test_a_failed_pod_stays_until_it_is_replaced() -> None:
    """Kueue's finalizer goes from it when another pod of its shape has taken its place."""
    failed = pod("a", "Failed", deleting=True)
    alone = look_at(GROUP_OF_TWO, [failed, pod("b", "Running")])
    replaced = look_at(GROUP_OF_TWO, [failed, pod("b", "Running"), pod("c")])

    assert (names(alone.release), alone.group) == ([], GROUP_OF_TWO)
    assert (names(replaced.release), names(replaced.open)) == (["a"], ["c"])


def test_a_pod_too_many_is_deleted() -> None:
    """The youngest that waits goes first."""
    found = look_at(GROUP_OF_TWO, [pod("a", "Running"), pod("b", "Running"), pod("c")])

    assert (names(found.delete), names(found.release), names(found.open)) == (["c"], ["c"], [])


def test_a_pod_of_another_shape_stops_the_group() -> None:
    """What was admitted is not what is there: everything is deleted."""
    found = look_at(GROUP_OF_TWO, [pod("a", "Running"), pod("b", shape="other")])

    assert (found.group, names(found.delete), names(found.release)) == (None, ["a", "b"], ["a", "b"])


@pytest.mark.parametrize(
    ("pods", "over"),
    [
        pytest.param([pod("a", "Succeeded"), pod("b", "Succeeded")], True, id="all succeeded"),
        pytest.param([pod("a", "Succeeded"), pod("b", "Failed")], False, id="one failed and may be replaced"),
        pytest.param([pod("a", "Succeeded"), pod("b", "Failed", final=True)], True, id="one failed for good"),
        pytest.param([pod("a", "Running"), pod("b", "Failed", final=True)], False, id="one still runs"),
        pytest.param([pod("a", "Failed", total=1, single=True)], True, id="a single pod"),
    ],
)
def test_the_end_of_a_group(pods: list[dict[str, Any]], over: bool) -> None:
    """When it is over its finalizers go, and its quota is free."""
    found = look_at(GROUP_OF_TWO, pods)

    assert (found.group is None) is over
    assert bool(found.release) is over


def claim(key: str, created: str, pods: float = 2, **more: Any) -> Claim:
    runs = more.get("runs", False)
    fields = {"queue": "team", "holds": runs, "runs": runs} | more
    return Claim(key=key, created=created, needs={"pods": pods}, **fields)


@pytest.mark.parametrize(
    ("claims", "start", "stop"),
    [
        pytest.param([claim("b", "2"), claim("a", "1")], ("a", "b"), (), id="all that fit, oldest first"),
        pytest.param([claim("a", "1", 3), claim("b", "2", 3), claim("c", "3", 1)], ("a", "c"), (), id="a small one passes"),
        pytest.param([claim("a", "2", 3, runs=True), claim("b", "1", 3)], (), (), id="who runs goes on"),
        pytest.param(
            [claim("a", "1", 3, runs=True, banned=True), claim("b", "2", 3)], (), ("a",), id="preempted, not gone yet"
        ),
        pytest.param([claim("a", "1", 3, banned=True), claim("b", "2", 3)], ("b",), (), id="preempted and gone"),
        pytest.param([claim("a", "1", 3, holds=True), claim("b", "2", 3)], (), (), id="still being stopped"),
        pytest.param([claim("a", "1", 3, runs=True), claim("b", "2", 3, runs=True)], (), ("b",), id="too many run"),
        pytest.param([claim("a", "1", queue="nobody's")], (), (), id="no such queue"),
    ],
)
def test_quota(claims: list[Claim], start: tuple[str, ...], stop: tuple[str, ...]) -> None:
    """Whoever fits begins, oldest first; who runs keeps what it holds until it is gone."""
    ruling = rule(claims, {"team": {"pods": 4}})

    assert (ruling.start, ruling.stop) == (start, stop)


def test_what_a_queue_does_not_name_is_not_bounded() -> None:
    """A queue that counts CPUs alone does not care how many pods there are."""
    assert rule([claim("a", "1", 100)], {"team": {"cpu": 1.0}}).start == ("a",)
