"""The table of clocks, row by row: what starts each, what pauses it, what ends it, and what happens when it is over.

The clocks of the supervisor are tested here, one test each (`HERE`). `ELSEWHERE` names the tests of the coordinator's and the
agents' clocks.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rallypoint.simulation.simulator import Frame, simulate
from rallypoint.supervision.clocks import CLOCKS, pause, run, spent, stop
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.plan import Profile, Refill, Scheduling

TESTS = Path(__file__).parents[1]

#: Files and tests of the clocks of other packages.
ELSEWHERE = {
    "join": ("agent/test_rendezvous.py", "test_too_few_nodes_end_the_job_after_the_join_timeout"),
    "last-call": ("agent/test_rendezvous.py", "test_the_last_call_lets_more_nodes_come"),
    "node-lease": ("agent/test_rendezvous.py", "test_a_silent_node_is_lost_after_its_lease"),
    "node-group": (
        "supervision/test_node_groups.py",
        "test_all_nodes_of_a_group_are_replaced_when_a_replacement_is_pending_for_too_long",
    ),
    "lost-machine": ("kube/test_machines.py", "test_a_renewal_is_overdue"),
    "hang": ("capabilities/hang/test_watch.py", "test_a_doubt_comes_at_half_of_the_bound_and_a_verdict_at_all_of_it"),
    "fence-timeout": ("agent/test_client.py", "test_contact_is_lost_after_the_fence_time_out"),
    "stop-grace": ("live/test_ends.py", "test_one_that_ignores_sigterm_is_killed_after_the_grace"),
    "lease": ("agent/test_lease.py", "test_a_lease_is_over_after_its_seconds"),
}


def frames(policy: Policy, *steps: dict[str, Any], until: float = 0.0, **trace: Any) -> tuple[Frame, ...]:
    """Run a trace of nodes that we make ourselves."""
    told = simulate(policy, {"makers": "supervisor", "until": until, "steps": list(steps), **trace})
    assert not [f.violations for f in told if f.violations]
    return told


def due(frame: Frame, clock: str) -> float | None:
    """Return when a clock is over, in the trace's seconds; None when it does not run."""
    return next((frame.due(d) for d in frame.deadlines if d.clock == clock), None)


def frame_at(told: tuple[Frame, ...], at: float) -> Frame:
    """Return what was so at a second."""
    return next(f for f in reversed(told) if f.at <= at)


APPWRAPPER = Policy(min_nodes=2, max_nodes=2, profile=Profile.APPWRAPPER)
LADDER = Policy(min_nodes=2, max_nodes=2, node_replacements=0)


def test_admission() -> None:
    """From deployment while too few pods exist; quota pauses it; enough pods end it; over, the job is unhealthy."""
    told = frames(
        APPWRAPPER, {"at": 5, "pods": "P"}, {"at": 20, "pods": "G"}, {"at": 50, "pods": "P"}, {"at": 55, "pods": "PP"}
    )
    assert [due(frame_at(told, at), "admission") for at in (5, 20, 50, 55)] == [60.0, None, 90.0, None]
    over = frames(APPWRAPPER, {"at": 5, "pods": "P"}, until=60)
    assert over[-1].conditions["Unhealthy"].reason == "InsufficientPodsReady"


def test_warm_up() -> None:
    """From deployment; in the ladder it waits while fewer than MIN run because others are pending."""
    assert due(frames(APPWRAPPER, {"at": 5, "pods": "PP"})[-1], "warm-up") == 300
    told = frames(LADDER, {"at": 100, "pods": "PP"}, {"at": 150, "pods": "RR", "status": "forming"})
    assert [due(frame_at(told, at), "warm-up") for at in (100, 150)] == [None, 450.0]
    ready = frames(LADDER, {"at": 10, "pods": "RR"})[-1]
    assert due(ready, "warm-up") is None


def test_failure() -> None:
    """From the first failed pod; their absence ends it; over, the job is reset."""
    told = frames(LADDER, {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, until=160)
    assert due(frame_at(told, 100), "failure") == 160
    assert told[-1].phase is Phase.RESETTING
    back = frames(APPWRAPPER, {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, {"at": 130, "pods": "RR"})
    assert due(back[-1], "failure") is None


def test_pending() -> None:
    """From when too few run and others are pending; their running ends it; over, the job fails."""
    told = frames(LADDER, {"at": 10, "pods": "RP"}, {"at": 100, "pods": "RR"}, {"at": 500, "pods": "RP"}, until=1400)
    assert [due(frame_at(told, at), "pending") for at in (10, 100, 500)] == [900.0, None, 1400.0]
    assert told[-1].verdict is not None
    assert told[-1].verdict.reason == "PendingTimeout"


def _mindcluster(**settings: Any) -> Policy:
    scheduling = Scheduling(fault_scheduling="grace", **settings)
    return Policy(min_nodes=2, max_nodes=2, profile=Profile.MINDCLUSTER, scheduling=scheduling)


def test_pending_rounds() -> None:
    """From the rescheduling of a pod alone; its running ends it; over, everything is rescheduled."""
    policy = _mindcluster(pod_rescheduling=True, pending_rounds=5, pending_interval=2.0)
    told = frames(policy, {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, until=120)
    assert next(f.at for f in told if f.phase is Phase.RESETTING) == 110
    runs = frames(policy, {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, startup=3.0, until=120)
    assert runs[-1].phase is Phase.RUNNING


def test_wait_reschedule() -> None:
    """From the fault that process-level recovery answers; over, the scheduler decides."""
    policy = _mindcluster(process_recover="on", recover_strategy=("recover",), wait_reschedule_timeout=30.0)
    told = frames(policy, {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, until=140)
    assert due(frame_at(told, 100), "wait-reschedule") == 130
    assert next(f.at for f in told if f.phase is Phase.RESETTING) == 130


def test_last_checkpoint() -> None:
    """From the loss for which all nodes are deleted, where the job allows `dump`; over, they are deleted without it."""
    policy = _mindcluster(process_recover="on", recover_strategy=("dump",))
    told = frames(policy, {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, until=140)
    assert due(frame_at(told, 100), "last-checkpoint") == 130
    assert next(f.at for f in told if f.phase is Phase.RESETTING) == 130


def test_replace_delay() -> None:
    """From the loss of a node; over, its slot is filled again."""
    policy = Policy(min_nodes=1, max_nodes=2, replace_delay=30.0)
    told = frames(policy, {"at": 10, "pods": "RR"}, {"at": 100, "pods": "RL"}, until=130)
    assert due(frame_at(told, 100), "replace-delay") == 130
    assert told[-1].record.slots[1].incarnation == 2


def test_retry_pause() -> None:
    """From when everything is gone; over, the next attempt is deployed."""
    told = frames(LADDER, {"at": 10, "pods": "RL"}, {"at": 100, "gone": True}, until=190)
    assert due(frame_at(told, 100), "retry-pause") == 190
    assert told[-1].attempt == 2


def test_forceful_deletion() -> None:
    """From the first delete; zero pods end it; strictly after it what is left goes by force."""
    told = frames(LADDER, {"at": 10, "pods": "RL"}, {"at": 70}, until=672)
    assert due(frame_at(told, 70), "forceful-deletion") == 670
    forced = [f.at for f in told if any(getattr(a, "force", False) and getattr(a, "node", 1) == 0 for a in f.actions)]
    assert forced
    assert forced[0] > 670


def test_deletion_on_failure() -> None:
    """From the failure; suspension ends it; over, the deletion begins."""
    policy = Policy(
        min_nodes=1, max_nodes=1, node_replacements=0, retry_limit=0, failure_grace=0.0, deletion_on_failure_grace=50.0
    )
    told = frames(policy, {"at": 10, "pods": "F(1)"}, until=60)
    assert due(frame_at(told, 10), "deletion-on-failure") == 60
    assert told[-1].record.condition(ConditionType.DELETING_RESOURCES)


def test_success_ttl() -> None:
    """From success; over, what is left is deleted."""
    policy = Policy(min_nodes=2, max_nodes=2, success_ttl=100.0)
    told = frames(policy, {"at": 10, "pods": "RR"}, {"at": 50, "pods": "SS"}, until=150)
    assert due(frame_at(told, 50), "success-ttl") == 150
    assert told[-1].record.condition(ConditionType.DELETING_RESOURCES)


def test_exit() -> None:
    """From success, for agents that do not end; over, they are deleted."""
    policy = Policy(min_nodes=2, max_nodes=2, leave_grace=15.0)
    verdict = {"outcome": "succeeded", "reason": "Completed", "message": "all ended well"}
    told = frames(policy, {"at": 10, "pods": "RR"}, {"at": 50, "verdict": verdict}, until=65)
    assert due(frame_at(told, 50), "exit") == 65
    assert told[-1].actions


def test_healthy_progress() -> None:
    """From healthy steps; a fault starts it anew; over, what was spent counts no more."""
    policy = Policy(min_nodes=1, max_nodes=1, node_replacements=1, node_refill=Refill(healthy_for=60.0), retry_limit=0)
    steps = [{"at": 10.0, "pods": "R", "step": 1}, {"at": 20.0, "pods": "L"}]
    steps += [{"at": 20.0 + 15 * n, "pods": "R", "step": 10 * n} for n in range(1, 8)]
    told = frames(policy, *steps, {"at": 200, "pods": "L"}, {"at": 210, "pods": "R"}, startup=1.0)
    assert any(e.kind == "budget-refilled" for f in told for e in f.events)
    assert told[-1].phase is Phase.RUNNING
    for_life = frames(
        Policy(min_nodes=1, max_nodes=1, node_replacements=1, retry_limit=0), *steps, {"at": 200, "pods": "L"}, until=400
    )
    assert for_life[-1].phase is Phase.FAILED


HERE: dict[str, Callable[[], None]] = {
    "admission": test_admission,
    "warm-up": test_warm_up,
    "failure": test_failure,
    "pending": test_pending,
    "pending-rounds": test_pending_rounds,
    "wait-reschedule": test_wait_reschedule,
    "last-checkpoint": test_last_checkpoint,
    "replace-delay": test_replace_delay,
    "retry-pause": test_retry_pause,
    "forceful-deletion": test_forceful_deletion,
    "deletion-on-failure": test_deletion_on_failure,
    "success-ttl": test_success_ttl,
    "exit": test_exit,
    "healthy-progress": test_healthy_progress,
}


@pytest.mark.parametrize(("name", "place"), ELSEWHERE.items(), ids=list(ELSEWHERE))
def test_a_clock_of_another_package_has_its_test_there(name: str, place: tuple[str, str]) -> None:
    """The test that this file promises exists."""
    path, function = place
    tree = ast.parse((TESTS / path).read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assert function in names, name


def test_every_row_has_a_test() -> None:
    """A clock that is added to the table must be tried."""
    assert sorted(clock.name for clock in CLOCKS) == sorted([*HERE, *ELSEWHERE])


def test_a_clock_that_stands_still_keeps_what_it_has_run() -> None:
    """Paused and run again it goes on from there; stopped it begins at zero."""
    record = run(JobRecord.new(name="digits", uid="u1", digest="", owner="cli", now=0.0), "warm-up")
    record = pause(_later(record, 10.0), "warm-up")
    record = run(_later(record, 50.0), "warm-up")
    assert spent(_later(record, 55.0), "warm-up") == 15.0
    assert spent(run(stop(_later(record, 55.0), "warm-up"), "warm-up"), "warm-up") == 0.0


def _later(record: JobRecord, clock: float) -> JobRecord:
    return dataclasses.replace(record, clock=clock)
