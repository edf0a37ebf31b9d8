"""MindCluster's resolution of recovery strategies: the reference's vectors, their neighbours, and what holds for all."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.compat.mindcluster import strategy as module
from rallypoint.compat.mindcluster.strategy import Ability, Choice, Failure, Fault, FaultType, Health, Situation, Strategy

MEMORY, ORDINARY, NETWORK = (Fault(type=kind, rank=3) for kind in (FaultType.MEMORY, FaultType.ORDINARY, FaultType.NETWORK))
OTHER = Fault(type=FaultType.ORDINARY, rank=9)
ALONE = Situation()
STAYS = Situation(in_place=True)
MASTER = Situation(master_faulty=True)
LATE = Situation(rescheduling=True, waited=20.0)
ALL = "exit,dump,retry,recover,downgrade,upgrade"


def resolve(configured, reported, faults=(ORDINARY,), situation=ALONE) -> Choice:
    return module.resolve(configured, reported, faults, situation)


def fails(configured, reported, failed, failure=Failure.REPAIR, situation=ALONE) -> Choice:
    return module.after_failure(configured, reported, Strategy(failed), failure, situation)


@pytest.mark.parametrize(
    ("configured", "reported", "faults", "situation", "answer"),
    [
        pytest.param("retry,recover,dump", "exit,dump,retry,recover", [MEMORY], ALONE, "retry", id="S1"),
        pytest.param("retry,recover,dump", "exit,dump,retry,recover", [MEMORY, OTHER], ALONE, "recover", id="S2"),
        pytest.param("retry,recover,dump", "exit,dump,recover", [MEMORY, NETWORK], ALONE, "recover", id="S3"),
        pytest.param(
            "retry,recover,dump", "exit,dump,retry,recover", [MEMORY, NETWORK], ALONE, "recover", id="S3-able-to-retry"
        ),
        pytest.param("retry,recover,dump", "exit,dump,recover", [MEMORY], ALONE, "dump", id="S4"),
        pytest.param("retry,recover,dump", "exit,recover", [MEMORY], ALONE, "exit", id="S4-without-dump"),
        pytest.param("retry", "exit,dump,retry", [ORDINARY], ALONE, "exit", id="S5"),
        pytest.param("recover-in-place,recover", "exit,recover", [ORDINARY], STAYS, "recover-in-place", id="S6"),
        pytest.param("recover-in-place,recover", "exit,recover", [ORDINARY], ALONE, "recover", id="S7"),
        pytest.param("recover-in-place", "exit,recover", [ORDINARY], ALONE, "exit", id="S8-in-place-only-and-not-eligible"),
        pytest.param("recover-in-place,dump", "exit,dump", [ORDINARY], STAYS, "dump", id="S9-in-place-is-reported-as-recover"),
        pytest.param("elastic-training,dump", "exit,dump,downgrade,upgrade", [ORDINARY], LATE, "elastic-training", id="S14"),
        pytest.param(
            "elastic-training,dump",
            "exit,dump,downgrade,upgrade",
            [ORDINARY],
            dataclasses.replace(LATE, waited=10.0, returned=True),
            "dump",
            id="S15-back-within-20s",
        ),
        pytest.param("elastic-training,dump", "exit,dump,downgrade", [ORDINARY], ALONE, "elastic-training", id="S16"),
        pytest.param("elastic-training,dump", "exit,dump,downgrade", [ORDINARY], MASTER, "dump", id="S17"),
        pytest.param("elastic-training,dump", "exit,dump", [ORDINARY], ALONE, "dump", id="S18-no-downgrade-reported"),
        pytest.param("dump,exit", "exit", [ORDINARY], ALONE, "exit", id="S20"),
        pytest.param("", "exit", [ORDINARY], ALONE, "exit", id="S21"),
        pytest.param("exit,dump,recover", "exit,dump,recover", [ORDINARY], ALONE, "recover", id="S22"),
        pytest.param(" recover , dump ", ALL, [ORDINARY], ALONE, "recover", id="blanks-are-trimmed"),
        pytest.param("recover,dump", ALL, [MEMORY], ALONE, "recover", id="retry-not-configured"),
    ],
)
def test_the_first_answer_is_the_first_possible_one_of_the_fixed_order(configured, reported, faults, situation, answer):
    """The answer to a fault is the first strategy that is configured and reported, whatever the order they are written in."""
    choice = resolve(configured, reported, faults, situation)

    assert (choice.strategy.value, choice.wait, choice.at_once, choice.pause) == (answer, 0.0, False, False)


@pytest.mark.parametrize(
    ("configured", "reported", "failed", "failure", "situation", "answer"),
    [
        pytest.param("recover,dump", "exit,dump,recover", "recover", Failure.REPAIR, ALONE, "dump", id="S10-then-dump"),
        pytest.param("recover,dump", "exit,dump,recover", "dump", Failure.REPAIR, ALONE, "exit", id="S10-then-exit"),
        pytest.param("recover", "exit,dump,recover", "recover", Failure.REPAIR, ALONE, "exit", id="S11-dump-not-configured"),
        pytest.param("retry,recover,dump", ALL, "retry", Failure.RECOVERABLE, ALONE, "recover", id="S12-405-is-ordinary-now"),
        pytest.param("retry,recover-in-place", ALL, "retry", Failure.RECOVERABLE, STAYS, "recover-in-place", id="S12-in-place"),
        pytest.param("retry,recover,dump", ALL, "retry", Failure.REPAIR, ALONE, "dump", id="S13-unrecoverable"),
        pytest.param("retry,recover,dump", ALL, "retry", Failure.CLIENT, ALONE, "exit", id="S13-499-removes-dump"),
        pytest.param(
            "retry,recover,elastic-training", ALL, "retry", Failure.REPAIR, ALONE, "elastic-training", id="S13-elastic"
        ),
        pytest.param(
            "recover-in-place,recover", ALL, "recover-in-place", Failure.REPAIR, STAYS, "recover", id="in-place-then-recover"
        ),
        pytest.param(
            "recover-in-place,elastic-training",
            ALL,
            "recover-in-place",
            Failure.REPAIR,
            STAYS,
            "elastic-training",
            id="in-place-then-elastic",
        ),
        pytest.param("elastic-training,dump", ALL, "elastic-training", Failure.REPAIR, LATE, "dump", id="S18-scale-in-fails"),
        pytest.param(
            "elastic-training", ALL, "elastic-training", Failure.REPAIR, LATE, "exit", id="S18-scale-in-fails-no-dump"
        ),
        pytest.param(
            "recover,elastic-training",
            ALL,
            "recover",
            Failure.SCHEDULE,
            ALONE,
            "elastic-training",
            id="no-pod-in-time-then-elastic",
        ),
        pytest.param("recover,elastic-training", ALL, "recover", Failure.REPAIR, ALONE, "exit", id="no-repair-then-no-elastic"),
    ],
)
def test_a_failure_leads_to_the_next_possible_one(configured, reported, failed, failure, situation, answer):
    """After a failure comes the first that is left below it, and what the failure spoilt is left no more."""
    choice = fails(configured, reported, failed, failure, situation)

    assert (choice.strategy.value, choice.pause) == (answer, False)


@pytest.mark.parametrize(
    ("health", "grace_exit", "configured", "at_once"),
    [
        pytest.param(Health.UNHEALTHY, False, "dump", True, id="S19"),
        pytest.param(Health.UNHEALTHY, False, "exit,dump", True, id="S19-exit-is-no-better"),
        pytest.param(Health.SUB_HEALTHY, True, "dump", True, id="S19-sub-healthy-and-to-end"),
        pytest.param(Health.SUB_HEALTHY, False, "dump", False, id="sub-healthy-and-to-go-on"),
        pytest.param(Health.HEALTHY, True, "dump", False, id="healthy"),
        pytest.param(Health.UNHEALTHY, False, "recover,dump", False, id="something-better-is-configured"),
        pytest.param(Health.UNHEALTHY, False, "", False, id="nothing-is-configured"),
    ],
)
def test_a_dump_is_immediate_where_it_is_the_best_there_is(health, grace_exit, configured, at_once):
    """An unhealthy job whose best strategy is dump saves and exits without a stop round; all others have to be asked first."""
    choice = resolve(configured, None, (), Situation(health=health, grace_exit=grace_exit))

    assert choice.at_once is at_once
    assert choice.strategy is (Strategy.DUMP if at_once else Strategy.EXIT)
    assert choice.pause is not at_once


@pytest.mark.parametrize(
    ("waited", "rescheduling", "wait"),
    [
        pytest.param(0.0, True, 20.0, id="just-lost"),
        pytest.param(19.0, True, 1.0, id="nearly-over"),
        pytest.param(20.0, True, 0.0, id="over"),
        pytest.param(0.0, False, 0.0, id="nobody-brings-it-back"),
    ],
)
def test_elastic_training_waits_only_for_what_may_come_back(waited, rescheduling, wait):
    """The world shrinks when the lost pod had its time to come back, and at once where no scheduler brings it back."""
    choice = resolve("elastic-training,dump", ALL, situation=Situation(rescheduling=rescheduling, waited=waited))

    assert (choice.strategy, choice.wait) == (Strategy.ELASTIC_TRAINING, wait)


@pytest.mark.parametrize(
    ("configured", "situation", "job_level"),
    [
        pytest.param("recover,dump", MASTER, True, id="rank-0-migrates"),
        pytest.param("recover,dump", ALONE, False, id="another-migrates"),
        pytest.param("recover-in-place,recover", dataclasses.replace(MASTER, in_place=True), False, id="rank-0-stays"),
    ],
)
def test_recover_never_replaces_the_pod_of_rank_0(configured, situation, job_level):
    """Where the pod of rank 0 would have to be replaced, the whole job is rescheduled."""
    assert resolve(configured, ALL, situation=situation).job_level is job_level


@pytest.mark.parametrize(
    ("failed", "failure"),
    [
        pytest.param("retry", Failure.SILENCE, id="nobody-says-how-retry-went"),
        pytest.param("recover", Failure.SILENCE, id="nobody-says-how-recover-went"),
        pytest.param("recover", Failure.SCHEDULE, id="no-pod-in-time"),
        pytest.param("exit", Failure.SCHEDULE, id="the-pods-of-exit-do-not-come-back"),
        pytest.param("exit", Failure.REPAIR, id="exit-itself"),
    ],
)
def test_what_the_processes_cannot_mend_is_handed_to_the_scheduler(failed, failure):
    """Without an answer, without a pod and after exit, process-level recovery is paused and the scheduler decides."""
    choice = fails("retry,recover,dump", "exit,dump,recover", failed, failure)

    assert (choice.strategy, choice.pause) == (Strategy.EXIT, True)


@pytest.mark.parametrize(
    ("faults", "supported", "retried", "ordinary"),
    [
        pytest.param([MEMORY], True, False, False, id="one-type"),
        pytest.param([NETWORK, NETWORK], True, False, False, id="one-type-twice"),
        pytest.param([MEMORY, NETWORK], True, False, True, id="two-types"),
        pytest.param([NETWORK, ORDINARY], True, False, True, id="an-ordinary-one-among-them"),
        pytest.param([MEMORY], True, True, True, id="retried-already"),
        pytest.param([MEMORY], False, False, True, id="retry-not-supported"),
    ],
)
def test_faults_become_ordinary(faults, supported, retried, ordinary):
    """Faults are retried only when all are of one retryable type, retry is supported and has not just failed."""
    assert module.as_ordinary(faults, supported=supported, retried=retried) is ordinary


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        pytest.param(405, Failure.RECOVERABLE, id="405"),
        pytest.param(406, Failure.REPAIR, id="406"),
        pytest.param(499, Failure.CLIENT, id="499"),
        pytest.param(500, Failure.REPAIR, id="server-side"),
    ],
)
def test_codes_say_how_it_failed(code, failure):
    """Each reported code is one way to fail."""
    assert Failure.of_code(code) is failure


@pytest.mark.parametrize("code", [pytest.param(0, id="success"), pytest.param(201, id="ranks-to-isolate")])
def test_codes_that_are_no_failure_are_refused(code):
    """A code that tells of no failure is not taken for one."""
    with pytest.raises(ValueError) as error:
        Failure.of_code(code)

    assert str(code) in str(error.value)


@pytest.mark.parametrize(
    ("configured", "reported", "faults", "named"),
    [
        pytest.param(
            "recover,restart", ALL, [ORDINARY], ["recover-strategy", "'restart'", "elastic-training"], id="configured"
        ),
        pytest.param(
            "recover", "exit,elastic-training", [ORDINARY], ["reported", "'elastic-training'", "downgrade"], id="reported"
        ),
        pytest.param("recover", ALL, [], ["faults"], id="no-fault"),
    ],
)
def test_what_is_none_of_the_words_is_refused(configured, reported, faults, named):
    """An unknown word is an error that names the set, the word and what is allowed."""
    with pytest.raises(ValueError) as error:
        resolve(configured, reported, faults)

    assert [word for word in named if word not in str(error.value)] == []


situations = st.builds(
    Situation,
    in_place=st.booleans(),
    master_faulty=st.booleans(),
    rescheduling=st.booleans(),
    waited=st.sampled_from([0.0, 10.0, 20.0, 100.0]),
    returned=st.booleans(),
)
configurations = st.lists(st.sampled_from(Strategy), unique=True)
reports = st.lists(st.sampled_from(Ability), unique=True)
fault_lists = st.lists(st.builds(Fault, type=st.sampled_from(FaultType), rank=st.integers(0, 15)), min_size=1, max_size=4)

NEEDS = {
    Strategy.RETRY: Ability.RETRY,
    Strategy.RECOVER_IN_PLACE: Ability.RECOVER,
    Strategy.RECOVER: Ability.RECOVER,
    Strategy.ELASTIC_TRAINING: Ability.DOWNGRADE,
    Strategy.DUMP: Ability.DUMP,
}


@given(configurations, reports, fault_lists, situations, st.randoms())
def test_every_answer_is_configured_and_reported_in_whatever_order(configured, reported, faults, situation, random):
    """An answer other than exit is in both sets, and no order of words or faults changes it."""
    choice = module.resolve(configured, reported, faults, situation)

    assert choice.strategy is Strategy.EXIT or (choice.strategy in configured and NEEDS[choice.strategy] in reported)
    for words in (configured, reported, faults):
        random.shuffle(words)
    assert module.resolve(configured, reported, faults, situation).strategy is choice.strategy


@given(configurations, reports, st.sampled_from(Strategy), st.sampled_from(Failure), situations)
def test_no_failure_leads_back_up(configured, reported, failed, failure, situation):
    """What follows a failure is further down the order, and after exit only exit is left."""
    order = list(Strategy)

    choice = module.after_failure(configured, reported, failed, failure, situation)

    assert order.index(choice.strategy) > order.index(failed) or choice.strategy is failed is Strategy.EXIT
    assert choice.strategy is Strategy.EXIT or (choice.strategy in configured and NEEDS[choice.strategy] in reported)


@given(configurations, reports, fault_lists, situations, st.lists(st.sampled_from(Failure), min_size=6, max_size=6))
def test_every_ladder_ends(configured, reported, faults, situation, failures):
    """However each strategy fails, six failures lead to exit."""
    choice = module.resolve(configured, reported, faults, situation)
    for failure in failures:
        choice = module.after_failure(configured, reported, choice.strategy, failure, situation)

    assert choice.strategy is Strategy.EXIT
