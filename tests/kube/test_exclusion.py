"""Which machines the pods of a job keep off."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.backends.kubernetes.exclusion import choose_exclusion, has_no_room_elsewhere, left_hosts, lost_hosts, returned
from rallypoint.backends.kubernetes.manifests.hosts import Exclusion
from rallypoint.backends.kubernetes.watching.views import PodView, pod_view
from rallypoint.job import Role, compile_plan, load_job
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, IncidentId, Rung
from tests.kube.pods import condition, host_of, pod

SPEC: dict[str, Any] = {"name": "train", "entrypoint": "train.py", "image": "any:1"}

BAD, FLAGGED = frozenset({"a"}), frozenset({"b"})


def role(**fields: Any) -> Role:
    return load_job({**SPEC, **fields}, based=False).roles[0]


def machine(name: str, ready: str = "True", *, cordoned: bool = False, taint: str = "", **labels: str) -> dict[str, Any]:
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": cordoned, "taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("machines", "fields", "expected"),
    [
        pytest.param([machine("a"), machine("c")], {}, Exclusion(required=BAD), id="another one is there"),
        pytest.param([machine("a")], {}, Exclusion(), id="no other one is there"),
        pytest.param([machine("a"), machine("c", ready="Unknown")], {}, Exclusion(), id="the other one is lost"),
        pytest.param([machine("a"), machine("c", cordoned=True)], {}, Exclusion(), id="the other one is cordoned"),
        pytest.param([machine("a"), machine("c", taint="gpu")], {}, Exclusion(), id="the other one is tainted"),
        pytest.param(
            [machine("a"), machine("c", taint="gpu")],
            {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
            Exclusion(required=BAD),
            id="its taint is tolerated",
        ),
        pytest.param(
            [machine("a"), machine("c", pool="cpu")], {"node_selector": {"pool": "gpu"}}, Exclusion(), id="it is not selected"
        ),
        pytest.param([machine("a"), machine("c")], {"host_ignore_list": ["c"]}, Exclusion(), id="the user excludes it"),
        pytest.param(None, {}, Exclusion(preferred=BAD), id="machines may not be looked at"),
    ],
)
def test_a_fault_keeps_a_job_off_a_machine_while_another_can_take_it(
    machines: list[dict[str, Any]] | None, fields: dict[str, Any], expected: Exclusion
) -> None:
    """The last usable machine is never excluded; where nobody knows which there are, the exclusion is a preference."""
    hosts = None if machines is None else [host_of(found) for found in machines]

    assert choose_exclusion(BAD, frozenset(), hosts, role(**fields)) == expected


def test_flagged_devices_are_never_used() -> None:
    """A broken accelerator is no place to train, even where it is the last."""
    assert choose_exclusion(BAD, FLAGGED, None, role()) == Exclusion(required=FLAGGED, preferred=BAD)
    assert choose_exclusion(BAD, FLAGGED, [host_of(machine("a"))], role()) == Exclusion(required=FLAGGED)


def test_a_group_of_roles_stays_together() -> None:
    """A pod that must run beside the others of its group cannot be kept off their machine."""
    chosen = choose_exclusion(BAD, FLAGGED, [host_of(machine("a")), host_of(machine("c"))], role(), grouped=True)

    assert chosen == Exclusion(preferred=BAD | FLAGGED)


def record(*incidents: Incident) -> JobRecord:
    return JobRecord(name="digits", uid="u", digest="d", owner="cli", created_at=0.0, attempt=1, term=1, incidents=incidents)


def loss(host: str, kind: FaultKind = FaultKind.NODE_LOST) -> Incident:
    return Incident(
        id=IncidentId(attempt=1, round=0, node=1, sequence=1),
        cause=Cause.NODE,
        rung=Rung.RECOVER,
        reason="it was lost",
        detected_at=1.0,
        kind=kind,
        answer=Answer.RETRY_ELSEWHERE,
        culprit=Culprit(node=1, host=host),
    )


def unscheduled(*off: str) -> PodView:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(off)}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    waits = condition("PodScheduled", "Unschedulable", status="False")
    found = pod_view(pod(host="", phase="Pending", spec={"affinity": affinity}, conditions=(waits,), containers=()))
    assert found is not None
    return found


def test_a_machine_that_was_lost_and_is_back_may_be_used() -> None:
    """A pod that keeps off it, and finds no room, is told of it; one that was found bad stays left alone."""
    hosts = [host_of(machine("a")), host_of(machine("b"))]

    assert returned(unscheduled("a"), record(loss("a")), hosts, frozenset()) == ("a",)
    assert returned(unscheduled("a"), record(loss("a")), hosts, frozenset({"a"})) == (), "it is still lost"
    assert returned(unscheduled("a"), record(loss("a", FaultKind.HARDWARE)), hosts, frozenset()) == ()
    assert returned(unscheduled("a"), record(loss("a")), [host_of(machine("a", ready="Unknown"))], frozenset()) == ()


def test_the_successor_of_such_a_pod_may_go_there() -> None:
    """Nothing was wrong with the machine but that it was away."""
    again = Incident(
        id=IncidentId(attempt=1, round=0, node=1, sequence=2),
        cause=Cause.EVACUATION,
        rung=Rung.RECOVER,
        reason="it is created anew",
        detected_at=2.0,
    )

    assert lost_hosts(record(loss("a"))) == {"a"}
    assert has_no_room_elsewhere(record(loss("a"), again), 1, 3)
    assert not has_no_room_elsewhere(record(loss("a")), 1, 2)


def test_machines_of_a_group_that_was_left_are_kept_off():
    """By the label of the plan; machines without the label, and of other groups, stay."""
    hosts = [host_of(machine("a", rack="1")), host_of(machine("b", rack="2")), host_of(machine("c"))]
    (plan,) = compile_plan(load_job({**SPEC, "node_group_failover": {"label": "rack"}}, based=False))
    record = dataclasses.replace(JobRecord.new(name="j", uid="u", digest="d", owner="o", now=0.0), left_groups=("1", ""))

    assert left_hosts(record, plan, hosts) == {"a"}
    assert left_hosts(record, None, hosts) == left_hosts(dataclasses.replace(record, left_groups=()), plan, hosts) == set()
