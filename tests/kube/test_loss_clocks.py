"""Which clocks of lost machines `explain` shows, and when they are over."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.backends.contract import PlaceClock
from rallypoint.backends.kubernetes.machines import clocks_of, silent_pods
from rallypoint.backends.kubernetes.watching.views import PodView, pod_view
from rallypoint.supervision.record import Condition, ConditionType, JobRecord, Phase, Slot
from rallypoint.wire.fence import Fence
from rallypoint.wire.missing import Absence, Missing
from rallypoint.wire.status import JobState, JobStatus, Member
from tests.kube.pods import pod

RECORD = JobRecord(
    name="digits",
    uid="u",
    digest="d",
    owner="cli",
    created_at=0.0,
    attempt=1,
    term=1,
    phase=Phase.RUNNING,
    slots=(Slot(node=0), Slot(node=1)),
)

STATUS = JobStatus(
    job="digits",
    uid="u",
    fence=Fence(attempt=1, term=1, round=1),
    state=JobState.RUNNING,
    world=tuple(Member(node=node, incarnation=1, agent=f"a{node}", host="h", local_world_size=1) for node in (0, 1)),
)

SILENT = dataclasses.replace(STATUS, missing=(Missing(node=1, incarnation=1, why=Absence.SILENT, since=1.0),))

UNLESS = "unless machine host-a renews its Lease or the pod answers"


def views(*, deleting: bool = False) -> tuple[PodView, ...]:
    """The coordinator and node 0 on `host-a`, and node 1 on `host-b`."""
    made = [
        pod(node=-1, deleting=deleting),
        pod(node=0, deleting=deleting),
        pod(node=1, host="host-b", deleting=deleting),
    ]
    return tuple(view for view in map(pod_view, made) if view is not None)


def names(record: JobRecord, status: JobStatus | None, *, silent: bool = False) -> list[str]:
    return [view.name for view in silent_pods(record, views(), status, silent=silent)]


@pytest.mark.parametrize(
    ("status", "silent", "expected"),
    [
        pytest.param(STATUS, False, [], id="all are heard"),
        pytest.param(None, False, [], id="the coordinator starts"),
        pytest.param(SILENT, False, ["digits-a1-n1-1"], id="an agent is silent"),
        pytest.param(SILENT, True, ["digits-c1", "digits-a1-n0-1"], id="the coordinator, and who is on its machine"),
        pytest.param(
            dataclasses.replace(SILENT, fence=Fence(attempt=1, term=0, round=1)), False, [], id="the status of an earlier term"
        ),
    ],
)
def test_who_is_silent(status: JobStatus | None, silent: bool, expected: list[str]) -> None:
    """By the coordinator's word, or because it does not answer itself."""
    assert names(RECORD, status, silent=silent) == expected


def test_the_pods_of_a_job_that_ends_are_looked_at_until_it_is_released() -> None:
    """Pods on a lost machine do not end by themselves."""
    deleting = dataclasses.replace(RECORD, phase=Phase.TERMINATING, deletion=True)
    there = Condition(type=ConditionType.RESOURCES_DEPLOYED, value=True, reason="Running", at=0.0, clock=0.0)

    assert len(names(deleting, STATUS)) == 3
    assert len(names(dataclasses.replace(RECORD, phase=Phase.SUCCEEDED, conditions=(there,)), STATUS)) == 3
    assert names(dataclasses.replace(RECORD, phase=Phase.SUCCEEDED), STATUS) == []


@pytest.mark.parametrize(
    ("age", "within"),
    [
        pytest.param(4.0, 8.0, id="it runs"),
        pytest.param(13.0, 0.0, id="it is over"),
        pytest.param(None, None, id="nobody may read the Lease"),
    ],
)
def test_what_happens_when(age: float | None, within: float | None) -> None:
    """Twelve seconds after the last renewal, with what ends the clock."""
    coordinator, node, _ = views()
    found = list(clocks_of(RECORD, (coordinator, node), {"host-a": age}))

    told = ("the coordinator is lost and the next one starts", "node 0 is lost and is replaced")
    expected = [PlaceClock(clock="lost-machine", within=within or 0.0, then=f"{then}, {UNLESS}") for then in told]
    assert found == ([] if within is None else expected)


def test_a_pod_that_is_ended_has_the_clock_once_a_renewal_is_missed() -> None:
    """Before that, its machine is as alive as any other."""
    deleting = dataclasses.replace(RECORD, phase=Phase.TERMINATING, deletion=True)
    ended = views(deleting=True)[1:2]

    assert list(clocks_of(deleting, ended, {"host-a": 9.0})) == []
    assert [one.then for one in clocks_of(deleting, ended, {"host-a": 11.0})] == [
        f"pod digits-a1-n0-1 is deleted with force, {UNLESS}"
    ]
