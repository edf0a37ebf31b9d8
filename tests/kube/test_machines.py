"""When the Lease of a machine's kubelet says that the machine is lost."""

from __future__ import annotations

import pytest

from rallypoint.backends.kubernetes.machines import OVERDUE, MachineLease, heard, suspects
from rallypoint.backends.kubernetes.watching.views import pod_view
from rallypoint.supervision.record import JobRecord, Slot
from rallypoint.wire.fence import Fence
from rallypoint.wire.missing import Absence, Missing
from rallypoint.wire.status import JobState, JobStatus, Member
from tests.kube.pods import pod

#: This process's clock and the API server's have nothing to do with each other.
NOW, SERVER = 100.0, 1_900_000_000.0


@pytest.mark.parametrize(
    ("lease", "overdue"),
    [
        pytest.param(MachineLease(version="1", since=NOW - 5, renewed_at=SERVER - 13), 13.0, id="renewed too long ago"),
        pytest.param(MachineLease(version="1", since=NOW - 5, renewed_at=SERVER - 11), 0.0, id="renewed lately"),
        pytest.param(MachineLease(version="1", since=NOW - 1, renewed_at=SERVER - 60), 0.0, id="read once, by a slow clock"),
        pytest.param(MachineLease(version="1", since=NOW - 13, renewed_at=SERVER + 60), 13.0, id="still, by a fast clock"),
        pytest.param(MachineLease(version="1", since=NOW - 13, renewed_at=0.0), 13.0, id="a time that cannot be read"),
        pytest.param(MachineLease(version="1", since=NOW - OVERDUE + 1, renewed_at=0.0), 0.0, id="not for long enough"),
    ],
)
def test_a_renewal_is_overdue(lease: MachineLease, overdue: float) -> None:
    """By the kubelet's time or by this process's own clock, and never after a single reading."""
    assert lease.overdue(now=NOW, server_time=SERVER) == overdue


def test_another_version_is_a_renewal() -> None:
    """The same one is none, whatever its time says."""
    first = MachineLease(version="1", since=NOW, renewed_at=SERVER)

    assert first.read("1", SERVER + 9, NOW + 9) == first
    assert first.read("2", SERVER + 9, NOW + 9) == MachineLease(version="2", since=NOW + 9, renewed_at=SERVER + 9)


def status(*, missing: tuple[int, ...] = ()) -> JobStatus:
    """What a coordinator tells of a world of nodes 0 and 1 while node 2 waits."""
    members = [Member(node=node, incarnation=1, agent=f"a{node}", host="h", local_world_size=1) for node in (0, 1, 2)]
    gone = tuple(Missing(node=node, incarnation=1, why=Absence.SILENT, since=1.0) for node in missing)
    fence = Fence(attempt=1, term=1, round=1)
    world, waiting = tuple(members[:2]), tuple(members[2:])
    return JobStatus(job="digits", uid="u", fence=fence, state=JobState.RUNNING, world=world, waiting=waiting, missing=gone)


def asked(known: frozenset[tuple[int, int]] | None, lost: frozenset[str] = frozenset()) -> list[int]:
    """Return the nodes whose machines are looked at; node I is on machine `host-I`."""
    slots = tuple(Slot(node=node) for node in (0, 1, 2, 3))
    record = JobRecord(name="digits", uid="u", digest="d", owner="cli", created_at=0.0, attempt=1, term=1, slots=slots)
    views = [pod_view(pod(node=node, host=f"host-{node}")) for node in (0, 1, 2, 3)]
    return [view.labels.node for view in suspects(record, [view for view in views if view], known, lost)]


def test_only_the_machines_of_silent_agents_are_looked_at() -> None:
    """The coordinator hears members and those that wait, unless it says that they are silent."""
    assert asked(heard(status())) == [3]
    assert asked(heard(status(missing=(1,)))) == [1, 3]
    assert asked(heard(None)) == [0, 1, 2, 3]


def test_without_a_coordinator_only_lost_machines_are_looked_at() -> None:
    """Nobody says who is silent, but what was on the machine of a lost coordinator is lost with it."""
    assert asked(None) == []
    assert asked(None, frozenset({"host-2"})) == [2]
