"""The conductor of a job of several roles: each state leads to these actions, and nothing that happens breaks its rules."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.supervision.conductor import conduct, delete, new_record, take_over, wants
from rallypoint.supervision.role_records import (
    ConductorPolicy,
    ConductorRecord,
    Decision,
    Level,
    Outcome,
    Phase,
    RolePolicy,
    StartUnit,
    StopUnit,
    UnitKey,
    UnitSeen,
    UnitState,
)
from rallypoint.wire import codec
from tests.model import conducting
from tests.model.conducting import Conducted, Faults
from tests.model.explorer import explore
from tests.scale import sized

ACTOR = RolePolicy(name="actor", elastic=True)
ROLLOUT = RolePolicy(name="rollout", units=4, per_group=2, driver=False)
REWARD = RolePolicy(name="reward", units=2)
POLICY = ConductorPolicy(
    roles=(ACTOR, ROLLOUT, REWARD), node_max_restart=2, role_max_reset=1, job_max_restart=1, master_max_restart=1
)


class Cluster:
    """Units as a backend has them, and one conductor that takes whole turns."""

    def __init__(self, policy: ConductorPolicy = POLICY) -> None:
        self.policy, self.now = policy, 0.0
        self.record = new_record(policy)
        self.units: dict[UnitKey, UnitSeen] = {}
        self.obey = True

    def turn(self) -> Decision:
        """Decide, save, and perform; a record that is written and read again leads to the same."""
        seen = tuple(self.units.values())
        decision = conduct(self.record, seen, self.policy, self.now)
        assert conduct(codec.loads(ConductorRecord, codec.dumps(self.record)), seen, self.policy, self.now) == decision
        self.record = decision.record
        for action in decision.actions:
            if isinstance(action, StartUnit):
                assert action.key not in self.units
                self.units[action.key] = UnitSeen(key=action.key, state=UnitState.RUNNING, present=True)
            elif action.force or self.obey:
                unit = self.units[action.key]
                state = UnitState.LOST if unit.state is UnitState.RUNNING else unit.state
                self.units[action.key] = dataclasses.replace(unit, state=state, present=False)
        return decision

    def running(self, role: str = "") -> dict[tuple[str, int], UnitKey]:
        """Return the keys of what runs, by role and index."""
        return {
            (key.role, key.index): key
            for key, unit in self.units.items()
            if unit.state is UnitState.RUNNING and role in ("", key.role)
        }

    def ends(
        self, role: str, index: int = 0, state: UnitState = UnitState.FAILED, *, at: float | None = None, code: int = 1
    ) -> None:
        """Let a unit end by itself."""
        key = self.running()[role, index]
        reason = f"exited with code {code}"
        self.units[key] = UnitSeen(key=key, state=state, present=False, reason=reason, exit_code=code, ended_at=at)

    def settle(self) -> None:
        """Take turns until nothing is left to do."""
        for _ in range(20):
            before = self.record
            if not self.turn().actions and self.record == before:
                return
        raise AssertionError("the job comes to no rest")


@pytest.fixture
def cluster() -> Cluster:
    """A job of which every unit runs."""
    cluster = Cluster()
    cluster.settle()
    assert len(cluster.running()) == 7
    return cluster


def test_everything_is_started_once(cluster):
    """And nothing is done while all is well."""
    assert cluster.turn() == Decision(record=cluster.record)


def test_an_instance_is_restarted_alone(cluster):
    """All other units keep their lives."""
    before = cluster.running()
    cluster.ends("rollout", 2)

    decision = cluster.turn()

    fresh = dataclasses.replace(before["rollout", 2], incarnation=2)
    assert decision.actions == (StartUnit(key=fresh),)
    assert cluster.running() == {**before, ("rollout", 2): fresh}
    assert [(step.level, step.role, step.reason) for step in cluster.record.history] == [
        (Level.INSTANCE, "rollout", "exited with code 1")
    ]


def test_causes_are_in_the_order_of_the_ends(cluster):
    """What one turn sees is judged as it happened; what has no time, or one that cannot be, ended now."""
    cluster.now = 100.0
    cluster.ends("rollout", 3, at=math.nan)
    cluster.ends("rollout", 2, at=math.inf)
    cluster.ends("rollout", 1, at=7.0)
    cluster.ends("rollout", 0, at=7.5)
    cluster.ends("reward", 0, at=7.25)
    cluster.turn()

    found = [(step.role, step.index) for step in cluster.record.history]
    assert found == [("rollout", 1), ("reward", 0), ("rollout", 0), ("rollout", 2), ("rollout", 3)]


def test_a_node_that_is_restarted_too_often_resets_its_role(cluster):
    """Both instances of one node count; the other roles keep their units."""
    before = cluster.running()
    for index in (0, 1, 0):
        cluster.ends("rollout", index)
        cluster.turn()
    cluster.settle()

    assert [step.level for step in cluster.record.history] == [Level.INSTANCE, Level.INSTANCE, Level.ROLE]
    after = cluster.running()
    assert {key.reset for (role, _), key in after.items() if role == "rollout"} == {1}
    others = {place: key for place, key in before.items() if place[0] != "rollout"}
    assert {place: after[place] for place in others} == others


def test_a_role_is_started_again_when_all_its_units_have_ended():
    """None of the next life runs beside one of the last."""
    cluster = Cluster(ConductorPolicy(roles=(RolePolicy(name="a", units=2, on_failure=Level.ROLE),)))
    cluster.settle()
    cluster.obey = False
    cluster.ends("a", 1)
    cluster.turn()
    cluster.turn()
    assert [key.reset for key in cluster.running().values()] == [0]
    cluster.now = 15.0
    cluster.settle()

    assert [key.reset for key in cluster.running().values()] == [1, 1]


def test_roles_that_share_a_node_share_its_budget():
    """Restarts of each count for both."""
    roles = tuple(RolePolicy(name=name, place="pair") for name in ("a", "b"))
    cluster = Cluster(ConductorPolicy(roles=roles, node_max_restart=1))
    cluster.settle()
    cluster.ends("a")
    cluster.turn()
    cluster.ends("b")
    cluster.turn()

    assert [step.level for step in cluster.record.history] == [Level.INSTANCE, Level.ROLE]


def test_an_exhausted_ladder_resets_the_job(cluster):
    """All units of the attempt are ended before the next one starts; N restarts are N + 1 attempts."""
    cluster.obey = False
    cluster.ends("actor")
    decision = cluster.turn()
    assert {action.force for action in decision.actions if isinstance(action, StopUnit)} == {False}
    assert decision.wake_at == 15.0
    assert not any(isinstance(action, StartUnit) for action in decision.actions)
    cluster.now = 15.0
    assert all(isinstance(action, StopUnit) and action.force for action in cluster.turn().actions)
    cluster.settle()
    assert {key.attempt for key in cluster.running().values()} == {2}

    cluster.obey = True
    cluster.ends("actor")
    cluster.settle()
    assert (cluster.record.phase, cluster.record.attempt, cluster.running()) == (Phase.FAILED, 2, {})
    assert cluster.record.reason == "exited with code 1; no resets of the job left (limit: 1)"


@pytest.mark.parametrize(
    ("level", "phase", "attempt", "reset"),
    [
        (Level.INSTANCE, Phase.RUNNING, 1, 0),
        (Level.ROLE, Phase.RUNNING, 1, 1),
        (Level.JOB, Phase.RUNNING, 2, 0),
        (Level.NONE, Phase.FAILED, 1, 0),
    ],
    ids=lambda value: getattr(value, "value", ""),
)
def test_a_failure_begins_where_its_role_says(level, phase, attempt, reset):
    """The least first, by default."""
    cluster = Cluster(ConductorPolicy(roles=(RolePolicy(name="a", units=2, on_failure=level),)))
    cluster.settle()
    cluster.ends("a", 1)
    cluster.settle()

    assert (cluster.record.phase, cluster.record.attempt, cluster.record.roles[0].reset) == (phase, attempt, reset)
    assert len(cluster.running()) == (0 if phase is Phase.FAILED else 2)


def test_the_job_succeeds_with_its_drivers(cluster):
    """Servers then have their grace period; the job is over when nothing is left."""
    cluster.obey = False
    for role, index in (("actor", 0), ("reward", 0)):
        cluster.ends(role, index, UnitState.SUCCEEDED)
        cluster.settle()
    assert cluster.record.phase is Phase.RUNNING
    cluster.ends("reward", 1, UnitState.SUCCEEDED)

    decision = cluster.turn()

    assert {action.key.role for action in decision.actions} == {"rollout"}
    assert not any(action.force for action in decision.actions if isinstance(action, StopUnit))
    cluster.now = 14.9
    cluster.turn()
    assert len(cluster.running()) == 4
    cluster.now = 15.0
    cluster.settle()
    assert (cluster.record.phase, cluster.record.outcome, cluster.running()) == (Phase.SUCCEEDED, Outcome.SUCCEEDED, {})


def test_a_unit_that_cannot_be_seen_ended_is_ended_first(cluster):
    """Its next life starts when nothing of it is left."""
    key = cluster.running()["reward", 0]
    cluster.units[key] = UnitSeen(key=key, state=UnitState.LOST, present=True)

    assert cluster.turn().actions == (StopUnit(key=key, force=True),)
    assert cluster.turn().actions == (StartUnit(key=dataclasses.replace(key, incarnation=2)),)


def test_a_job_that_loses_too_many_masters_fails(cluster):
    """One replacement is allowed, the second is not."""
    once = take_over(cluster.record, POLICY, 1.0)
    twice = take_over(once, POLICY, 1.0)

    assert (once.phase, once.term) == (Phase.RUNNING, 2)
    assert (twice.phase, twice.outcome, twice.reason) == (
        Phase.STOPPING,
        Outcome.FAILED,
        "the master was replaced 1 times; master_max_restart allows no more",
    )


def test_a_deleted_job_ends_and_leaves_nothing(cluster):
    """Whatever it was doing, and twice is once."""
    cluster.record = delete(cluster.record, POLICY, 5.0)
    assert delete(cluster.record, POLICY, 9.0) == cluster.record
    cluster.settle()

    assert (cluster.record.phase, cluster.running()) == (Phase.DELETED, {})
    assert delete(cluster.record, POLICY, 9.0) == cluster.record


def test_a_clock_that_jumps_back_delays_no_end(cluster):
    """A deadline is never further away than its grace period."""
    cluster.now = 1e9
    cluster.record = delete(cluster.record, POLICY, cluster.now)
    cluster.now = 0.0
    assert cluster.turn().record.stop_at == 15.0


def test_a_life_that_is_over_is_not_wanted(cluster):
    """A unit that starts late ends by itself."""
    key = cluster.running()["rollout", 0]
    cluster.ends("rollout", 0)
    assert wants(cluster.record, key)
    cluster.turn()

    assert not wants(cluster.record, key)
    assert wants(cluster.record, dataclasses.replace(key, incarnation=2))
    assert not wants(cluster.record, dataclasses.replace(key, index=9))


ROLES = st.builds(
    RolePolicy,
    name=st.just(""),
    elastic=st.booleans(),
    units=st.integers(0, 4),
    per_group=st.sampled_from([1, 2]),
    driver=st.booleans(),
    place=st.sampled_from(["", "pair"]),
    on_failure=st.sampled_from(list(Level)),
)


def named(index: int, role: RolePolicy) -> RolePolicy:
    units = 1 if role.elastic else role.units
    return dataclasses.replace(role, name=f"r{index}", units=units, driver=role.driver or index == 0)


POLICIES = st.builds(
    lambda roles, *numbers: ConductorPolicy(
        roles=tuple(named(index, role) for index, role in enumerate(roles)),
        **dict(zip(("node_max_restart", "role_max_reset", "job_max_restart"), numbers, strict=True)),
    ),
    st.lists(ROLES, min_size=1, max_size=3),
    *[st.integers(0, 2)] * 3,
)


@given(POLICIES, st.integers(0, 2**32), st.integers(0, 80))
def test_no_history_breaks_a_rule_and_every_job_ends(policy, seed, steps):
    """Two conductors, crashes, failures, losses and wishes in any order; then, left alone, the job comes to its end."""
    chance = random.Random(seed)
    faults = Faults(crashes=3, failures=6, losses=2, deletions=1, takeovers=1, suspensions=2, renewals=1)
    world: Conducted = conducting.start(policy, faults)
    for _ in range(steps):
        world = step(world, chance)
    world = dataclasses.replace(world, left=Faults(crashes=0, failures=0))
    for _ in range(3000):
        if over(world):
            break
        world = step(world, chance)

    assert over(world), f"the job does not end: {world.record}"
    assert conducting.check(world) == ()


def over(world: Conducted) -> bool:
    """Return whether the job has ended and no conductor acts any more."""
    return world.record.finished and not any(conductor.loaded or conductor.acting for conductor in world.conductors)


def step(world: Conducted, chance: random.Random) -> Conducted:
    """Go one random step, which breaks nothing."""
    choices = list(conducting.moves(world))
    if not choices:
        return world
    _, world = chance.choice(choices)
    assert conducting.check(world) == ()
    return world


SMALL = ConductorPolicy(
    roles=(RolePolicy(name="actor", elastic=True), RolePolicy(name="rollout", units=2, driver=False)),
    node_max_restart=1,
    role_max_reset=1,
    job_max_restart=1,
)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(Faults(crashes=1, failures=1), id="a crash and a failure"),
        pytest.param(Faults(crashes=0, failures=2, losses=1), id="failures", marks=pytest.mark.extended),
        pytest.param(Faults(crashes=0, failures=1, deletions=1, takeovers=1), id="a deletion"),
        pytest.param(Faults(crashes=0, failures=1, suspensions=1), id="a suspension", marks=pytest.mark.extended),
        pytest.param(Faults(crashes=0, failures=1, renewals=1), id="a renewal", marks=pytest.mark.extended),
    ],
)
def test_every_state_within_reach_is_sound(faults):
    """All states of two conductors and three units up to a depth: no attempt beside another, no unit twice."""
    most = sized(20_000, 8_000)
    found = explore(conducting.start(SMALL, faults), depth=40, most=most, check_=conducting.check, moves_=conducting.moves)

    assert not found.broken, found.tell()
    assert found.states >= 0.75 * most
