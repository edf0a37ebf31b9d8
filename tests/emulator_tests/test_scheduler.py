"""Which node a pod goes to, and in which words it goes to none."""

from __future__ import annotations

import pytest

from tests.emulator.kubelet.node import node_body
from tests.emulator.kubelet.scheduler import place
from tests.emulator.options import NodeOptions


def node(name, **options):
    return node_body(NodeOptions(name=name, **options), "127.0.0.1")


def asking(**spec):
    amounts = spec.pop("amounts", {})
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": amounts}}], **spec}}


def hostname(operator, *values):
    expression = {"key": "kubernetes.io/hostname", "operator": operator, "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}
NODES = [node("a", labels={"zone": "1"}), node("b", labels={"zone": "2"}, gpus=1), node("c", taints=(TAINT,))]


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        pytest.param(asking(), "a", id="anywhere"),
        pytest.param(asking(nodeSelector={"zone": "2"}), "b", id="a selector"),
        pytest.param(asking(affinity=hostname("NotIn", "a")), "b", id="not that host"),
        pytest.param(asking(affinity=hostname("In", "b", "z")), "b", id="one of these hosts"),
        pytest.param(
            asking(tolerations=[{"operator": "Exists"}], affinity=hostname("NotIn", "a", "b")), "c", id="a toleration"
        ),
        pytest.param(
            asking(tolerations=[{"key": "k", "value": "v"}], affinity=hostname("In", "c")), "c", id="a toleration by value"
        ),
        pytest.param(asking(amounts={"nvidia.com/gpu": "4"}, affinity=hostname("NotIn", "z")), "a", id="where the GPUs are"),
    ],
)
def test_a_pod_goes_where_it_can(pod, name):
    """Selectors, affinities, taints and room decide; the emptiest node wins."""
    assert place(pod, NODES, []) == (name, "")


def test_room_is_what_others_have_left():
    """Requests of pods that are there count, wherever they came from."""
    there = [{"spec": {**asking(amounts={"nvidia.com/gpu": "6"})["spec"], "nodeName": "a"}}]

    name, why = place(asking(amounts={"nvidia.com/gpu": "4"}), NODES[:2], there)

    assert (name, why.partition(". ")[0]) == ("", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu")


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        pytest.param(asking(amounts={"cpu": "1000"}), "2 Insufficient cpu", id="too large"),
        pytest.param(
            asking(nodeSelector={"zone": "9"}), "2 node(s) didn't match Pod's node affinity/selector", id="no such node"
        ),
    ],
)
def test_a_pod_that_goes_nowhere_is_told_why(pod, told):
    """The message counts the nodes by their reasons, as the real scheduler's does."""
    name, why = place(pod, NODES, [])

    assert name == ""
    assert why.startswith("0/3 nodes are available: ")
    assert told in why
    assert "1 node(s) had untolerated taint(s) {k: v}" in why
