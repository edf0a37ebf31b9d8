"""One turn of a job with roles: the record shows when all units run, and each failure once."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.supervision.conducting import conduct_job
from rallypoint.supervision.record import ConditionType, JobRecord
from rallypoint.supervision.role_records import ConductorPolicy, RolePolicy, StartUnit, UnitKey, UnitSeen, UnitState

POLICY = ConductorPolicy(roles=(RolePolicy(name="rollout", units=2),))


class Cluster:
    """Units that run as soon as they are started."""

    def __init__(self) -> None:
        self.now = 0.0
        self.record = JobRecord.new(name="rl", uid="u1", digest="d", owner="ann", now=0.0)
        self.units: dict[UnitKey, UnitSeen] = {}

    def turn(self) -> None:
        self.now += 1
        decision = conduct_job(self.record, tuple(self.units.values()), POLICY, self.now)
        self.record = decision.record
        for action in decision.actions:
            if isinstance(action, StartUnit):
                self.units[action.key] = UnitSeen(key=action.key, state=UnitState.RUNNING, present=True)
            else:
                self.units[action.key] = dataclasses.replace(self.units[action.key], present=False)

    def fail(self, *, present: bool = False) -> None:
        """End the first unit with exit code 1; `present` if some of it still runs."""
        key = min(self.units)
        self.units[key] = UnitSeen(key=key, state=UnitState.FAILED, present=present, reason="exited with code 1", exit_code=1)

    @property
    def ready(self) -> tuple[bool, float | None]:
        """The condition PodsReady, and when the attempt was ready for the first time."""
        return self.record.condition(ConditionType.PODS_READY), self.record.attempts[-1].ready_at


@pytest.fixture
def cluster() -> Cluster:
    """A job whose first turn has started both units."""
    cluster = Cluster()
    cluster.turn()
    return cluster


def test_an_attempt_is_ready_when_all_units_run_and_keeps_the_first_time(cluster: Cluster) -> None:
    """Not in the turn that starts the units; later turns do not change the time."""
    seen = [cluster.ready]
    for _ in range(2):
        cluster.turn()
        seen.append(cluster.ready)

    assert seen == [(False, None), (True, 2.0), (True, 2.0)]


def test_a_failed_unit_of_which_a_process_is_left_does_not_run(cluster: Cluster) -> None:
    """Then not all units run."""
    cluster.fail(present=True)
    cluster.turn()

    assert cluster.ready == (False, None)


def test_a_failure_is_recorded_once(cluster: Cluster) -> None:
    """As one line of history and one incident, however many turns follow."""
    cluster.turn()
    cluster.fail()
    for _ in range(4):
        cluster.turn()

    assert [event.kind for event in cluster.record.history if "exited with code 1" in event.detail] == ["restarted"]
    assert [incident.culprit.exit_code for incident in cluster.record.incidents if incident.culprit] == [1]
    assert cluster.ready == (True, 2.0)
