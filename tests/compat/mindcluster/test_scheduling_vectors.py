"""MindCluster's scheduler: the reference's vectors, their neighbours, and what holds for all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.compat.mindcluster.scheduling import (
    NOT_REGISTERED,
    Ending,
    Fault,
    FaultReason,
    Pending,
    Rule,
    Scope,
    State,
    admission,
    decide,
)
from rallypoint.compat.mindcluster.strategy import Strategy
from rallypoint.wire.plan import Scheduling

GRACE = Scheduling(fault_scheduling="grace")
FORCE = Scheduling(fault_scheduling="force")
POD = dataclasses.replace(GRACE, pod_rescheduling=True)
PROCESS = dataclasses.replace(GRACE, process_recover="on", recover_strategy=("recover",))
BOTH = dataclasses.replace(POD, process_recover="on", recover_strategy=("recover",))
PAUSED = dataclasses.replace(PROCESS, process_recover="pause")
TOLERANT = dataclasses.replace(BOTH, graceful_tolerance=True)
STUBBORN = dataclasses.replace(GRACE, never_upgrade=True)
NEED_GRACE = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER)
THRICE = dataclasses.replace(POD, fault_retry_times=3)


def hardware(*nodes):
    return [Fault(node=node, reason=FaultReason.HARDWARE) for node in nodes]


def ended(*nodes):
    return [Fault(node=node, reason=FaultReason.CONTAINER) for node in nodes]


def lost(*nodes):
    return [Fault(node=node, reason=FaultReason.LOST) for node in nodes]


@pytest.mark.parametrize(
    ("settings", "faults", "scope", "nodes", "rule"),
    [
        pytest.param(Scheduling(), hardware(3), "none", (), Rule.OFF, id="V1"),
        pytest.param(Scheduling(fault_scheduling="on"), hardware(3), "none", (), Rule.OFF, id="V1-any-other-value"),
        pytest.param(GRACE, hardware(3), "job", (), Rule.JOB_RESCHEDULING, id="V2"),
        pytest.param(POD, hardware(3), "pods", (3,), Rule.POD_RESCHEDULING, id="V3"),
        pytest.param(POD, hardware(5, 3), "pods", (3, 5), Rule.POD_RESCHEDULING, id="V3-two-pods"),
        pytest.param(POD, hardware(0), "job", (), Rule.RANK_ZERO, id="V4"),
        pytest.param(POD, hardware(3, 0), "job", (), Rule.RANK_ZERO, id="V4-among-others"),
        pytest.param(PROCESS, hardware(3), "pods", (3,), Rule.PROCESS_RECOVER, id="V5-process-recover"),
        pytest.param(PROCESS, hardware(0), "job", (), Rule.RANK_ZERO, id="V5-rank-0"),
        pytest.param(PAUSED, hardware(3), "job", (), Rule.JOB_RESCHEDULING, id="V6-pause"),
        pytest.param(GRACE, ended(2), "none", (), Rule.RETRY_TIMES, id="V8"),
        pytest.param(GRACE, hardware(2), "job", (), Rule.JOB_RESCHEDULING, id="V9"),
        pytest.param(GRACE, lost(2), "job", (), Rule.JOB_RESCHEDULING, id="V9-lost"),
        pytest.param(FORCE, hardware(2), "job", (), Rule.JOB_RESCHEDULING, id="V10-force"),
        pytest.param(STUBBORN, hardware(0, 3), "pods", (0, 3), Rule.POLICY_PATH, id="V10-recover-policy-path"),
        pytest.param(TOLERANT, hardware(3), "job", (), Rule.GRACEFUL_TOLERANCE, id="V12"),
        pytest.param(PAUSED, hardware(3), "job", (), Rule.JOB_RESCHEDULING, id="V13-scheduler-rules"),
    ],
)
def test_the_first_rule_that_matches_decides_what_is_deleted(settings, faults, scope, nodes, rule):
    """A fault restarts nothing, the faulty pods or the whole job, as the labels say."""
    decision = decide(settings, faults, State(), 100.0)

    assert (decision.scope.value, decision.nodes, decision.rule) == (scope, nodes, rule)
    assert decision.reason


def pending_for(settings: Scheduling, turns):
    """Return the scope that each turn decides while the replaced pod 3 stays pending."""
    state, scopes = State(replaced=frozenset({3})), []
    for now in turns:
        decision = decide(settings, [], state, now)
        scopes.append(decision.scope)
        state = dataclasses.replace(state, pending=decision.pending)
    return scopes


@pytest.mark.parametrize(
    ("settings", "period", "upgraded_at"),
    [
        pytest.param(POD, 1.0, 12.0, id="V3"),
        pytest.param(POD, 0.25, 12.0, id="V3-looked-at-more-often"),
        pytest.param(POD, 2.0, 24.0, id="V3-looked-at-less-often"),
        pytest.param(dataclasses.replace(POD, pending_interval=5.0), 1.0, 60.0, id="interval-of-5s"),
        pytest.param(dataclasses.replace(POD, pending_rounds=3), 1.0, 3.0, id="three-rounds"),
        pytest.param(dataclasses.replace(BOTH, process_recover="pause"), 1.0, 12.0, id="V6-pause-with-pod-rescheduling"),
        pytest.param(BOTH, 1.0, None, id="V5-no-count-while-process-recover-is-on"),
        pytest.param(dataclasses.replace(POD, never_upgrade=True), 1.0, None, id="V10-never-upgraded"),
        pytest.param(PAUSED, 1.0, 0.0, id="V6-pause-alone-upgrades-at-once"),
        pytest.param(dataclasses.replace(POD, fault_scheduling="off"), 1.0, None, id="switched-off"),
    ],
)
def test_pods_that_stay_pending_restart_the_whole_job(settings, period, upgraded_at):
    """Twelve checks that find a replaced pod pending extend its restart to all pods, unless process-level recovery is on."""
    turns = [period * turn for turn in range(int(90 / period))]

    scopes = pending_for(settings, turns)

    first = next((now for now, scope in zip(turns, scopes, strict=True) if scope is Scope.JOB), None)
    assert first == upgraded_at
    assert Scope.PODS not in scopes


def test_a_gap_between_two_turns_is_one_check():
    """Nobody looked for an hour: that is one check, not 3600."""
    decision = decide(POD, [], State(replaced=frozenset({3}), pending=Pending(checks=10, at=0.0)), 3600.0)

    assert (decision.scope, decision.pending) == (Scope.NONE, Pending(checks=11, at=3600.0))


def test_the_count_goes_on_where_process_recovery_interrupted_it():
    """Checks that were counted before process-recover-enable was on are kept, and none is counted for the time of it."""
    state = State(replaced=frozenset({3}), pending=Pending(checks=11, at=5.0))

    on = decide(BOTH, [], state, 50.0)
    again = decide(POD, [], dataclasses.replace(state, pending=on.pending), 60.0)
    last = decide(POD, [], dataclasses.replace(state, pending=again.pending), 61.0)

    assert [d.pending.checks for d in (on, again)] == [11, 11]
    assert [d.scope for d in (on, again, last)] == [Scope.NONE, Scope.NONE, Scope.JOB]
    assert last.rule is Rule.PENDING_ROUNDS


def test_the_count_is_forgotten_when_every_pod_runs():
    """The next fault gets its own twelve checks, as does the job after it was restarted as a whole."""
    healed = decide(POD, [], State(pending=Pending(checks=7, at=3.0)), 4.0)
    restarted = decide(POD, [], State(replaced=frozenset({3}), pending=Pending(checks=11, at=3.0)), 4.0)

    assert healed.pending == Pending()
    assert (restarted.scope, restarted.pending) == (Scope.JOB, Pending())


def restarts(settings: Scheduling, faults, times, **kwargs):
    """Let the same fault happen so many times; return what each time was decided, and the restarts that were charged."""
    state, scopes = State(), []
    for time in range(times):
        decision = decide(settings, faults, state, 100.0 * time, **kwargs)
        scopes.append(decision.scope.value)
        restarted = decision.scope is not Scope.NONE
        state = dataclasses.replace(state, charged=state.charged + decision.charge, restarts=state.restarts + restarted)
    return scopes, state.charged


@pytest.mark.parametrize(
    ("settings", "faults", "backoff_limit", "scopes", "charged"),
    [
        pytest.param(THRICE, ended(2), 0, ["pods"] * 3 + ["none"], 3, id="V7"),
        pytest.param(
            dataclasses.replace(GRACE, fault_retry_times=3), ended(2), 0, ["job"] * 3 + ["none"], 3, id="V7-job-level"
        ),
        pytest.param(GRACE, ended(2), 0, ["none"] * 4, 0, id="V8"),
        pytest.param(GRACE, hardware(2), 0, ["job"] * 4, 0, id="V9"),
        pytest.param(THRICE, hardware(2), 0, ["pods"] * 4, 0, id="V9-hardware-leaves-the-budget-alone"),
        pytest.param(THRICE, ended(2) + hardware(4), 0, ["pods"] * 4, 0, id="V9-hardware-beside-an-ended-container"),
        pytest.param(THRICE, ended(2), 2, ["pods"] * 2 + ["none"] * 2, 2, id="V10-backoff-limit-is-reached-first"),
        pytest.param(THRICE, hardware(2), 2, ["pods"] * 2 + ["none"] * 2, 0, id="V10-backoff-limit-bounds-hardware-too"),
        pytest.param(THRICE, ended(2), -1, ["pods"] * 3 + ["none"], 3, id="V10-no-backoff-limit"),
    ],
)
def test_only_ended_containers_use_fault_retry_times(settings, faults, backoff_limit, scopes, charged):
    """Each restart for an ended container costs one of fault-retry-times, hardware costs none, and the least limit counts."""
    assert restarts(settings, faults, 4, backoff_limit=backoff_limit) == (scopes, charged)


def test_a_fault_that_is_left_alone_is_named():
    """The pods that nobody answers for are told, so that somebody else can decide about the job."""
    decision = decide(GRACE, ended(4, 2), State(), 0.0)

    assert (decision.scope, decision.refused, decision.rule) == (Scope.NONE, (2, 4), Rule.RETRY_TIMES)


def test_a_fault_that_is_left_alone_stops_no_upgrade():
    """A pod that was replaced before has its twelve checks, whatever else is refused meanwhile."""
    state = State(replaced=frozenset({3}), pending=Pending(checks=11, at=0.0))

    waits = decide(POD, ended(2), state, 0.5)
    goes = decide(POD, ended(2), state, 1.0)

    assert (waits.scope, waits.rule, waits.refused) == (Scope.NONE, Rule.RETRY_TIMES, (2,))
    assert (goes.scope, goes.rule, goes.refused, goes.charge) == (Scope.JOB, Rule.PENDING_ROUNDS, (2,), False)


@pytest.mark.parametrize(
    ("settings", "now", "forced", "force_at"),
    [
        pytest.param(GRACE, 899.0, (), 900.0, id="V11-not-yet"),
        pytest.param(GRACE, 900.0, (), 900.0, id="V11-at-900s"),
        pytest.param(GRACE, 900.5, (2,), None, id="V11"),
        pytest.param(dataclasses.replace(GRACE, grace_over_time=2.0), 3.0, (2,), None, id="V11-grace-over-time-of-2s"),
        pytest.param(FORCE, 0.0, (2,), None, id="V10-force-waits-for-nothing"),
        pytest.param(dataclasses.replace(GRACE, fault_scheduling="off"), 901.0, (2,), None, id="V11-switched-off-meanwhile"),
    ],
)
def test_a_pod_that_does_not_end_is_forced(settings, now, forced, force_at):
    """A graceful deletion is forced once grace-over-time has passed; with `force` nothing is waited for."""
    decision = decide(settings, [], State(ending=(Ending(node=2, since=0.0),)), now)

    assert (decision.scope, decision.force, decision.force_at) == (Scope.NONE, forced, force_at)


@pytest.mark.parametrize(
    ("settings", "graceful", "force_at"),
    [
        pytest.param(POD, True, 1000.0, id="grace"),
        pytest.param(dataclasses.replace(FORCE, pod_rescheduling=True), False, None, id="force"),
    ],
)
def test_a_deletion_is_as_gentle_as_the_label_says(settings, graceful, force_at):
    """With `grace` pods get their termination grace and a deadline, with `force` they are deleted at once."""
    decision = decide(settings, hardware(3), State(), 100.0)

    assert (decision.graceful, decision.force_at, decision.look_at) == (graceful, force_at, force_at)


def test_a_fault_is_answered_once():
    """While a faulty pod ends it is not answered again; a fault of another pod is."""
    state = State(ending=(Ending(node=2, since=0.0),))

    assert decide(THRICE, ended(2), state, 1.0).scope is Scope.NONE
    assert decide(THRICE, ended(2, 5), state, 1.0).nodes == (5,)


def test_the_deadlines_tell_when_time_alone_acts():
    """While a replaced pod is pending, the next check and the upgrade are known; a pod that ends may be forced before."""
    state = State(replaced=frozenset({3}), pending=Pending(checks=4, at=10.0))

    decision = decide(POD, [], state, 10.5)
    beside = decide(POD, [], dataclasses.replace(state, ending=(Ending(node=5, since=-889.2),)), 10.5)

    assert (decision.look_at, decision.upgrade_at) == (11.0, 18.0)
    assert beside.look_at == pytest.approx(10.8)


@pytest.mark.parametrize(
    ("settings", "allowed", "code", "refused"),
    [
        pytest.param(PROCESS, True, 0, (), id="on-and-grace"),
        pytest.param(PAUSED, False, NOT_REGISTERED, (), id="V13"),
        pytest.param(dataclasses.replace(PROCESS, process_recover="off"), False, NOT_REGISTERED, (), id="off"),
        pytest.param(TOLERANT, False, 0, (), id="V12"),
        pytest.param(dataclasses.replace(PROCESS, fault_scheduling="force"), True, 0, NEED_GRACE, id="force"),
        pytest.param(dataclasses.replace(PROCESS, fault_scheduling="off"), True, 0, NEED_GRACE, id="scheduling-is-off"),
    ],
)
def test_process_level_recovery_acts_only_where_it_is_let(settings, allowed, code, refused):
    """It needs the label on and no graceful tolerance; what recovers single processes needs graceful scheduling, too."""
    answer = admission(settings)

    assert (answer.allowed, answer.code, answer.refused) == (allowed, code, frozenset(refused))
    assert bool(answer.reason) is not (allowed and not refused)


def test_the_documentation_names_every_rule_in_its_order():
    """The rules of docs/guides/mindcluster.md are those of the code, in the order in which they are tried."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "mindcluster.md").read_text()
    rows = [
        line.split("`")[1] for line in page.splitlines() if line.startswith("| ") and ". `" in line[:10] and line[2].isdigit()
    ]
    left_alone = [Rule.OFF, Rule.BACKOFF_LIMIT, Rule.RETRY_TIMES]

    ordered = [rule for rule in Rule if rule not in (*left_alone, Rule.NO_FAULT)]
    assert rows[: len(ordered)] == [rule.value for rule in ordered]
    assert [rule for rule in left_alone if f"| `{rule.value}` |" not in page] == []


all_settings = st.builds(
    Scheduling,
    fault_scheduling=st.sampled_from(["grace", "force", "off", ""]),
    pod_rescheduling=st.booleans(),
    process_recover=st.sampled_from(["on", "pause", "off"]),
    fault_retry_times=st.integers(-1, 3),
    graceful_tolerance=st.booleans(),
    never_upgrade=st.booleans(),
)
nodes = st.integers(0, 7)
all_faults = st.lists(st.builds(Fault, node=nodes, reason=st.sampled_from(FaultReason)), max_size=4)
states = st.builds(
    State,
    charged=st.integers(0, 4),
    replaced=st.frozensets(nodes),
    pending=st.builds(Pending, checks=st.integers(0, 12), at=st.none() | st.floats(0.0, 100.0)),
    ending=st.lists(st.builds(Ending, node=nodes, since=st.floats(0.0, 100.0)), max_size=3).map(tuple),
)


@given(all_settings, all_faults, states, st.floats(100.0, 2000.0))
def test_every_decision_is_one_that_the_labels_allow(settings, faults, state, now):
    """Off deletes nothing, the policy path never restarts the job, a charge has its container and its budget."""
    decision = decide(settings, faults, state, now)
    reasons = {fault.reason for fault in faults}

    assert decide(settings, faults[::-1], state, now) == decision
    assert (decision.scope is Scope.PODS) is bool(decision.nodes)
    if settings.fault_scheduling not in ("grace", "force"):
        assert decision.scope is Scope.NONE
    if settings.never_upgrade:
        assert decision.scope is not Scope.JOB
    if decision.charge:
        assert decision.scope is not Scope.NONE
        assert FaultReason.CONTAINER in reasons
        assert state.charged < settings.fault_retry_times
    if 0 in decision.nodes:
        assert settings.never_upgrade
    assert decision.look_at is None or decision.look_at >= now


@given(all_settings, all_faults, states, st.floats(100.0, 2000.0))
def test_the_count_of_checks_grows_by_one_at_the_most(settings, faults, state, now):
    """Checks are counted one by one or forgotten; they never run ahead, and stand still while process-level recovery is on."""
    checks = decide(settings, faults, state, now).pending.checks

    assert checks in (0, state.pending.checks, state.pending.checks + 1)
    assert checks <= settings.pending_rounds
    if settings.process_recover == "on":
        assert checks in (0, state.pending.checks)
