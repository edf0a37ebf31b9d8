"""What holds for every policy and every story: sequences of up to thirty events and eight pods, 10,000 in `make test-all`.

The seed is fixed, so that CI finds today what it found yesterday; `RALLYPOINT_EXAMPLES` asks for another number of sequences in
each test, and with it for other ones each time.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rallypoint.supervision.observation import Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import reconcile
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.incident import FREE, Cause
from rallypoint.wire.plan import Profile, Refill
from tests.scale import sized
from tests.supervision.invariants import present
from tests.supervision.strategies import FREE_EVENTS, Sea, policies, read, traces

ROOT = Path(__file__).parents[2]

#: 2,500 sequences take a minute, and several minutes on a loaded machine.
pytestmark = pytest.mark.timeout(1800)

_ASKED = os.environ.get("RALLYPOINT_EXAMPLES", "")


def many(examples: int) -> settings:
    """How a property is tried; without shrinking to a blob that nobody reads, the trace itself is printed."""
    return settings(
        max_examples=int(_ASKED) if _ASKED else examples,
        derandomize=not _ASKED,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


LADDER, APPWRAPPER, MINDCLUSTER = (policies(profile) for profile in Profile)
WRAPPED = policies(Profile.APPWRAPPER, wrapped=True)

profiles = pytest.mark.parametrize(
    "policies_",
    [
        pytest.param(LADDER, id="ladder"),
        pytest.param(APPWRAPPER, id="appwrapper"),
        pytest.param(MINDCLUSTER, id="mindcluster"),
        pytest.param(WRAPPED, id="wrapped components"),
    ],
)


def survive(sea: Sea, trace: list[int]) -> None:
    """Let a trace happen, a turn after each event; every turn keeps what it must, also when its arguments come from JSON."""
    for number in trace:
        event, which, pause = read(number)
        sea.now += pause
        sea.happen(event, which)
        before, seen, now = sea.record, sea.observe(), sea.now
        assert sea.turn() == (), event
        told = codec.loads(Observation, codec.dumps(seen))
        again = reconcile(JobRecord.from_json(before.to_json()), told, sea.policy, now)
        assert again == sea.decision, f"{event}: written and read again, the same arguments lead elsewhere"
        if sea.purged:
            return


def rests(sea: Sea) -> bool:
    """Return whether the job ends or rests by its own clocks while the backend obeys and nothing else happens.

    A budget that is refilled may pay for attempts without end, if the policy says so.
    """
    sea.deaf, sea.refused = False, None
    for _ in range(300):
        assert sea.turn() == ()
        decision = sea.decision
        assert decision is not None
        if decision.done:
            assert not present(sea.observe(), sea.policy), "something is left"
            return True
        if decision.wake_at is None and not decision.actions:
            return True
        sea.now = max(sea.now + 1.0, decision.wake_at or 0.0)
    return sea.policy.reset_refill != Refill()


@profiles
def test_every_turn_keeps_what_it_must(policies_):
    """Phases by the table, budgets, one attempt, nothing released too early, nothing waits for ever, arguments are all."""

    @many(sized(2500, 60))
    @given(policies_, traces())
    def holds(policy: Policy, trace: list[int]) -> None:
        sea = Sea(policy=policy)
        survive(sea, trace)
        assert sea.purged or rests(sea), f"the job comes to no rest: {sea.record.phase}"

    holds()


@profiles
def test_what_is_free_costs_nothing(policies_):
    """Scaling, preemption, evacuation, quota, suspension, lost coordinators and other supervisors spend no budget."""

    @many(sized(250, 50))
    @given(policies_, st.lists(st.integers(0, len(FREE_EVENTS) * 8 * 8 - 1), max_size=30))
    def holds(policy: Policy, trace: list[int]) -> None:
        # No clock is over: what a wait costs is another question.
        patient: dict[str, Any] = dict.fromkeys(("admission_grace", "warmup_grace", "failure_grace", "pending_timeout"), 1e9)
        sea = Sea(policy=dataclasses.replace(policy, retry_limit=3, no_progress_limit=0, **patient))
        for number in trace:
            event, which, pause = read(number, FREE_EVENTS)
            sea.now += pause
            sea.happen(event, which)
            assert sea.turn() == ()
            assert sea.record.retries == 0, event
            assert {i.cause for i in sea.record.incidents} <= FREE, event

    holds()


def test_nothing_else_is_asked():
    """A record that went through pickle, and one whose texts are other objects, lead to the same decision; so does a copy."""

    @many(sized(100, 25))
    @given(LADDER, traces(15))
    def holds(policy: Policy, trace: list[int]) -> None:
        sea = Sea(policy=policy)
        for number in trace:
            event, which, pause = read(number)
            sea.now += pause
            sea.happen(event, which)
            arguments = (sea.record, sea.observe(), sea.policy, sea.now)
            decision = reconcile(*arguments)
            assert reconcile(*pickle.loads(pickle.dumps(arguments))) == decision
            assert reconcile(*arguments) == decision
            sea.turn()

    holds()


def test_node_budgets_are_kept():
    """No slot of an attempt is replaced more often than its budget allows, whatever the coordinator tells."""

    @many(sized(300, 50))
    @given(LADDER, traces())
    def holds(policy: Policy, trace: list[int]) -> None:
        sea = Sea(policy=dataclasses.replace(policy, node_refill=Policy(min_nodes=1, max_nodes=1).node_refill))
        for number in trace:
            event, which, pause = read(number)
            sea.now += pause
            sea.happen(event, which)
            sea.turn()
            free = {i.id.node for i in sea.record.incidents if i.cause is not Cause.NODE and i.id.attempt == sea.record.attempt}
            for slot in sea.record.slots:
                assert slot.node in free or slot.incarnation <= policy.node_replacements + 1

    holds()


def test_the_order_of_sets_decides_nothing():
    """Two interpreters whose hashes differ decide all alike."""
    command = (sys.executable, "-c", "from tests.supervision.strategies import fates; print(fates(30))")
    run = functools.partial(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=True)
    one, other = (run(env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("1", "2"))
    assert len(one.strip()) == 64
    assert one == other
