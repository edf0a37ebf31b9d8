"""Exit codes, signals and the user's rules about ends; and the other words of the policies that have a form of their own."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.job import ElasticJob, JobError, compile_plan
from rallypoint.wire.incident import Answer
from rallypoint.wire.plan import EndRule

GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py"}


def plan_of(**fields):
    (plan,) = compile_plan(ElasticJob.model_validate({**GOOD, **fields}))
    return plan


def text_of(**fields):
    with pytest.raises(JobError) as caught:
        ElasticJob.model_validate({**GOOD, **fields})
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "codes"),
    [
        pytest.param([3, 10], (3, 10), id="list"),
        pytest.param(["3", " 10 "], (3, 10), id="list of texts"),
        pytest.param("3, 10", (3, 10), id="text"),
        pytest.param(3, (3,), id="one"),
        pytest.param([], (), id="none"),
    ],
)
def test_exit_codes_are_a_list_or_text_with_commas(value, codes):
    """Blanks around a code mean nothing."""
    plan = plan_of(fault_tolerance={"terminal_exit_codes": value, "retryable_exit_codes": value})

    assert (plan.failures.terminal_exit_codes, plan.failures.retryable_exit_codes) == (codes, codes)


@pytest.mark.parametrize("value", ["3,x", "3,", [256], [-1], [True], [1.5], None, {"a": 1}], ids=str)
def test_what_is_no_list_of_exit_codes_is_refused(value):
    """A code that is dropped in silence would be one that is retried for ever."""
    text = text_of(fault_tolerance={"terminal_exit_codes": value})

    assert text.startswith("fault_tolerance.terminal_exit_codes: ")
    assert text.endswith("is not allowed; expected exit codes from 0 to 255, as a list or separated by commas")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(
            {"exit_codes": [17, 18], "answer": "fail-now"},
            EndRule(exit_codes=(17, 18), answer=Answer.FAIL_NOW),
            id="exit codes",
        ),
        pytest.param({"exit_code": 17, "answer": "retry-here"}, EndRule(exit_codes=(17,), answer=Answer.RETRY_HERE), id="one"),
        pytest.param(
            {"signals": ["SIGKILL", "term", 6, "35"], "answer": "retry-elsewhere"},
            EndRule(signals=(9, 15, 6, 35), answer=Answer.RETRY_ELSEWHERE),
            id="signals by name and number",
        ),
        pytest.param(
            {"signal": "SIGBUS, SIGSEGV", "answer": "retry-elsewhere"},
            EndRule(signals=(7, 11), answer=Answer.RETRY_ELSEWHERE),
            id="signals as text",
        ),
        pytest.param(
            {"log_pattern": "Xid (48|79)", "answer": "retry-elsewhere"},
            EndRule(log_pattern="Xid (48|79)", answer=Answer.RETRY_ELSEWHERE),
            id="pattern",
        ),
    ],
)
def test_a_rule_reaches_the_plan(rule, expected):
    """Its signals have Linux' numbers, whatever machine reads the file, and it is saved and read back as itself."""
    job = ElasticJob.model_validate({**GOOD, "fault_tolerance": {"rules": [rule]}})
    (plan,) = compile_plan(job)

    assert plan.failures.end_rules == (expected,)
    assert ElasticJob.model_validate(job.to_document()) == job


def test_rules_keep_their_order():
    """The first that matches decides."""
    rules = [{"exit_code": code, "answer": "fail-now"} for code in (3, 1, 2)]

    assert [rule.exit_codes for rule in plan_of(fault_tolerance={"rules": rules}).failures.end_rules] == [(3,), (1,), (2,)]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        pytest.param(
            {"exit_code": 17, "answer": "retry"},
            ".answer: 'retry' is not allowed; expected one of retry-here, retry-elsewhere, fail-now",
            id="an unknown answer",
        ),
        pytest.param(
            {"exit_code": 17},
            ".answer: is missing; expected one of retry-here, retry-elsewhere, fail-now",
            id="without an answer",
        ),
        pytest.param(
            {"answer": "fail-now"},
            ": {'answer': 'fail-now'} is not allowed; expected a rule with at least one of exit_codes, signals, log_pattern",
            id="about nothing",
        ),
        pytest.param(
            {"log_pattern": "(", "answer": "fail-now"},
            ".log_pattern: '(' is not allowed; expected a regular "
            "expression for Python's re module (missing ), unterminated subpattern at position 0)",
            id="a broken pattern",
        ),
        pytest.param(
            {"log_pattern": "a" * 1001, "answer": "fail-now"},
            ".log_pattern: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            id="a long pattern",
        ),
        pytest.param(
            {"signal": "SIGOOPS", "answer": "fail-now"},
            ".signals: 'SIGOOPS' is not allowed; expected signals such "
            "as SIGKILL, or their numbers from 1 to 64, as a list or separated by commas",
            id="an unknown signal",
        ),
        pytest.param(
            {"signal": 9, "signals": [15], "answer": "fail-now"},
            ".signal: 9 is not allowed; expected the same value as "
            "signals ([15]); both are names of one field, set one of them",
            id="in both forms",
        ),
        pytest.param({"code": 1, "answer": "fail-now"}, ".code: is not a known key; ", id="an unknown key"),
        pytest.param(
            "fail-now",
            ": 'fail-now' is not allowed; expected a mapping with some of exit_codes, signals, log_pattern, answer",
            id="no mapping",
        ),
    ],
)
def test_a_wrong_rule_is_told_with_its_place(rule, text):
    """The list's index is in the path."""
    fine = {"exit_code": 1, "answer": "fail-now"}

    assert text_of(fault_tolerance={"rules": [fine, rule]}).startswith(f"fault_tolerance.rules[1]{text}")


def test_long_patterns_and_long_lists_of_rules_are_refused_with_their_length():
    """Each rule with a pattern may take seconds."""
    long = {"log_pattern": "a" * 1001, "answer": "fail-now"}
    rule = {"exit_code": 1, "answer": "fail-now"}

    assert text_of(fault_tolerance={"rules": [long]}).endswith(
        "expected a regular expression of at most 1000 characters, not 1001 characters"
    )
    assert text_of(fault_tolerance={"rules": [rule] * 101}).endswith("expected at most 100 rules; there are 101")
    assert len(plan_of(fault_tolerance={"rules": [rule] * 100}).failures.end_rules) == 100


@pytest.mark.parametrize("value", ["mine::Failover", "pkg.sub_mod::Failover2"])
def test_an_extension_names_a_module_and_a_class(value):
    """Whether there is one is known where the job runs."""
    assert plan_of(fault_tolerance={"dynamic_failover_extension": value}).failures.failover_extension == value


@pytest.mark.parametrize("value", ["pkg.mod:Failover", "pkg.mod", "::Failover", "pkg-mod::F", "a..b::F", "a::b.C", 7], ids=str)
def test_an_extension_of_another_form_is_refused(value):
    """A typing error would turn it off in silence."""
    assert text_of(fault_tolerance={"dynamic_failover_extension": value}) == (
        f"fault_tolerance.dynamic_failover_extension: {value!r} is not allowed; expected module::Class, with a "
        "dotted module and the name of a class in it"
    )


@pytest.mark.parametrize("value", [pytest.param(-1, id="-1"), pytest.param("2", id="2 as text"), pytest.param(0, id="0")])
def test_a_pending_strategy_is_one_of_four_numbers(value):
    """Also where a template has made text of it."""
    assert plan_of(fault_tolerance={"pending_fail_strategy": value}).grace.pending_fail_strategy == int(value)


@pytest.mark.parametrize(
    ("tolerance", "text"),
    [
        pytest.param(
            {"pending_fail_strategy": 3},
            "fault_tolerance.pending_fail_strategy: 3 is not allowed; expected one of -1, 0, 1, 2",
            id="strategy",
        ),
        pytest.param(
            {"pending_fail_strategy": True},
            "fault_tolerance.pending_fail_strategy: true is not allowed; expected one of -1, 0, 1, 2",
            id="strategy as a boolean",
        ),
        pytest.param(
            {"pending_timeout": -1},
            "fault_tolerance.pending_timeout: -1 is not allowed; expected a duration such as 90s, 1h30m, 7d, 300ms, "
            "PT1M30S or a number of seconds, 0s or more",
            id="timeout",
        ),
        pytest.param(
            {"success_ttl": 0},
            "fault_tolerance.success_ttl: 0 is not allowed; expected a "
            "duration such as 90s, 1h30m, 7d, 300ms, PT1M30S or a number of seconds, more than 0s",
            id="time to live",
        ),
        pytest.param(
            {"orphan_policy": "wait"},
            "fault_tolerance.orphan_policy: 'wait' is not allowed; expected one of continue, stop",
            id="orphan policy",
        ),
    ],
)
def test_other_words_out_of_bounds_are_refused(tolerance, text):
    """Path, value, what is allowed."""
    assert text_of(fault_tolerance=tolerance) == text


@pytest.mark.parametrize(
    ("recovery", "replacements"),
    [
        pytest.param({"relaunch_on_worker_failure": 5}, 5, id="DLRover's name"),
        pytest.param({"relaunch_on_worker_failure": 5, "node_replacements": 5}, 5, id="both, and the same"),
    ],
)
def test_node_replacements_have_dlrovers_name_too(recovery, replacements):
    """`relaunch_on_worker_failure` is the same budget."""
    assert plan_of(recovery=recovery).budgets.node_replacements == replacements


def test_two_names_with_two_values_are_an_error():
    """Nobody can know which one is meant."""
    assert text_of(recovery={"relaunch_on_worker_failure": 5, "node_replacements": 4}) == (
        "recovery.relaunch_on_worker_failure: 5 is not allowed; expected the same value as node_replacements (4); "
        "both are names of one field, set one of them"
    )


def test_a_refill_of_an_unknown_budget_is_an_error():
    """There are four."""
    assert text_of(recovery={"refill": {"pod": {"window": "1h"}}}) == (
        "recovery.refill.pod: is not a known key; expected one of process, node, hang, reset"
    )


@pytest.mark.parametrize("value", ["yes", 1, None], ids=str)
def test_a_flag_is_true_or_false(value):
    """No other word for it is guessed at."""
    text = text_of(recovery={"refill": {"node": {"on_checkpoint": value}}})

    assert text.startswith("recovery.refill.node.on_checkpoint: ")
    assert text.endswith(" is not allowed; expected true or false")
