"""AppWrapper's annotations, as input of a job file, as read from an AppWrapper, and as output. Numbers are the reference's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.job import ElasticJob, JobError, compile_plan
from rallypoint.job.annotations import ANNOTATIONS, PREFIX, read_annotations, write_annotations

GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py"}

GRACES = {
    "admissionGracePeriodDuration": "admission_grace_period",
    "warmupGracePeriodDuration": "warmup_grace_period",
    "failureGracePeriodDuration": "failure_grace_period",
    "retryPausePeriodDuration": "retry_pause_period",
    "forcefulDeletionGracePeriodDuration": "forceful_deletion_grace_period",
    "deletionOnFailureGracePeriodDuration": "deletion_on_failure_grace_period",
}
DURATION = "a duration with units such as 90s, 1h30m, 300ms, 24h or 0"
GRACE = f"{DURATION}, from 0s to 24h"
TTL = f"{DURATION}, more than 0s and at most 168h"
CODES = "exit codes from 0 to 255, separated by commas"
LIMIT = "a whole number from 0 to 100"


def key(suffix):
    return f"{PREFIX}{suffix}"


def job_with(annotations, **fields):
    return ElasticJob.model_validate({**GOOD, "annotations": {key(k): v for k, v in annotations.items()}, **fields})


@pytest.mark.parametrize("suffix", [pytest.param(suffix, id=suffix) for suffix in GRACES])
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("10s", 10.0, id="29: 10s"),
        pytest.param("1h30m", 5400.0, id="29: 1h30m"),
        pytest.param("1.5h", 5400.0, id="29: 1.5h"),
        pytest.param("300ms", 0.3, id="29: 300ms"),
        pytest.param("0", 0.0, id="29: 0"),
        pytest.param("1d", 86400.0, id="29: 1d"),
        pytest.param("24h", 86400.0, id="29: 24h"),
        pytest.param("+90s", 90.0, id="a sign"),
        pytest.param("-0", 0.0, id="minus nothing"),
    ],
)
def test_a_valid_duration_sets_its_field(suffix, text, seconds):
    """A job file and an AppWrapper mean the same by it, and nobody is warned."""
    read = read_annotations({key(suffix): text})

    assert getattr(job_with({suffix: text}).fault_tolerance, GRACES[suffix]) == seconds
    assert (read.values, read.warnings) == ({GRACES[suffix]: seconds}, ())


@pytest.mark.parametrize(
    ("suffix", "text", "value", "allowed"),
    [
        pytest.param("admissionGracePeriodDuration", "-10m", 0.0, GRACE, id="29: -10m"),
        pytest.param("retryPausePeriodDuration", "48h", 86400.0, GRACE, id="29: 48h"),
        pytest.param("deletionOnFailureGracePeriodDuration", "2d", 86400.0, GRACE, id="29: 2d"),
        pytest.param("successTTLDuration", "168h10s", 604800.0, TTL, id="29: TTL default+10s"),
        pytest.param("successTTLDuration", "169h", 604800.0, TTL, id="25: TTL 169h"),
        pytest.param("successTTLDuration", "0s", 604800.0, TTL, id="25: TTL 0s"),
        pytest.param("successTTLDuration", "-1h", 604800.0, TTL, id="25: TTL negative"),
        pytest.param("retryLimit", "-1", 0, LIMIT, id="29: negative retryLimit"),
    ],
)
def test_out_of_range_is_an_error_in_a_job_and_clamped_with_a_warning_from_an_appwrapper(suffix, text, value, allowed):
    """The error names key, value and what is allowed; the warning names key and value, and what is taken instead."""
    read = read_annotations({key(suffix): text})

    assert list(read.values.values()) == [value]
    (warning,) = read.warnings
    assert warning.startswith(f"{key(suffix)}: '{text}' is out of range; using ")
    with pytest.raises(JobError) as caught:
        job_with({suffix: text})
    assert str(caught.value) == (f"annotations.{key(suffix)}: '{text}' is not allowed; expected {allowed}")


def test_an_appwrapper_may_have_more_retries_than_a_job_file():
    """29: its retryLimit is not clamped; 101 is too many for a job file."""
    assert read_annotations({key("retryLimit"): "101"}).values == {"retry_limit": 101}
    assert read_annotations({key("retryLimit"): "101"}).warnings == ()
    with pytest.raises(
        JobError,
        match="'101' is not allowed; expected a whole number from 0 to 100",
    ):
        job_with({"retryLimit": "101"})


@pytest.mark.parametrize(
    ("suffix", "text", "allowed"),
    [
        pytest.param("warmupGracePeriodDuration", "222badTime", GRACE, id="29: 222badTime"),
        pytest.param("warmupGracePeriodDuration", "60", GRACE, id="29: 60"),
        pytest.param("warmupGracePeriodDuration", "", GRACE, id="29: nothing"),
        pytest.param("warmupGracePeriodDuration", " 60s", GRACE, id="29: a blank"),
        pytest.param("warmupGracePeriodDuration", "PT60S", GRACE, id="29: ISO 8601"),
        pytest.param("successTTLDuration", "a week", TTL, id="25: malformed TTL"),
        pytest.param("retryLimit", "3.5", LIMIT, id="29: half a retry"),
        pytest.param("retryLimit", " 3", LIMIT, id="29: a blank before the limit"),
        pytest.param("terminalExitCodes", "3,10,abc,42", CODES, id="18: 3,10,abc,42"),
        pytest.param("terminalExitCodes", "x,10,20", CODES, id="18: x,10,20"),
        pytest.param("retryableExitCodes", "3,,10", CODES, id="18: an empty item"),
        pytest.param("retryableExitCodes", "256", CODES, id="18: 256"),
    ],
)
def test_what_is_malformed_is_an_error_everywhere(suffix, text, allowed):
    """Never a default in silence: neither in a job file nor from an AppWrapper."""
    expected = f"annotations.{key(suffix)}: '{text}' is not allowed; expected {allowed}"

    for read in (lambda: job_with({suffix: text}), lambda: read_annotations({key(suffix): text})):
        with pytest.raises(JobError) as caught:
            read()
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        pytest.param("3,10", (3, 10), id="18a: 3,10"),
        pytest.param("3, 10", (3, 10), id="18b: a blank is trimmed"),
        pytest.param(" 137 ,143 ", (137, 143), id="18c: blanks everywhere"),
        pytest.param("0,3", (0, 3), id="18h: 0 is no error"),
        pytest.param("", (), id="18: none"),
    ],
)
def test_exit_codes_are_trimmed_and_reach_the_plan(text, codes):
    """18: a list with commas, in both annotations."""
    (plan,) = compile_plan(job_with({"terminalExitCodes": text, "retryableExitCodes": text}))

    assert (plan.failures.terminal_exit_codes, plan.failures.retryable_exit_codes) == (codes, codes)


def test_a_limit_and_a_time_to_live_reach_the_plan():
    """The two that are no grace periods."""
    (plan,) = compile_plan(job_with({"retryLimit": "+5", "successTTLDuration": "10m"}))

    assert (plan.budgets.retry_limit, plan.grace.success_ttl) == (5, 600.0)


def test_a_number_in_yaml_is_the_text_that_kubernetes_would_have():
    """`retryLimit: 5` needs no quotes."""
    assert job_with({"retryLimit": 5}).fault_tolerance.retry_limit == 5


def test_given_twice_and_the_same_is_given_once():
    """The two say the same in different words."""
    job = job_with({"retryPausePeriodDuration": "1h"}, fault_tolerance={"retry_pause_period": 3600})

    assert job.fault_tolerance.retry_pause_period == 3600.0


def test_given_twice_and_different_is_an_error():
    """Nobody can know which one is meant."""
    with pytest.raises(JobError) as caught:
        job_with({"retryLimit": "5"}, fault_tolerance={"retry_limit": 4})

    assert str(caught.value) == (
        f"annotations.{key('retryLimit')}: '5' is not allowed; it conflicts with fault_tolerance.retry_limit; set one of them"
    )


def test_a_key_that_is_misspelled_is_an_error_in_a_job_and_ignored_with_a_warning_elsewhere():
    """A policy that nobody reads would be one in vain."""
    wrong = key("retrylimit")
    with pytest.raises(
        JobError, match=f"^annotations.{wrong}: is not a known AppWrapper annotation; did you mean '{key('retryLimit')}'"
    ):
        job_with({"retrylimit": "5"})

    read = read_annotations({wrong: "5"})
    assert (read.values, read.warnings) == ({}, (f"{wrong}: is not a known annotation and is ignored",))


def test_other_annotations_are_passed_over():
    """They are the pods' and mean nothing here."""
    assert read_annotations({"example.com/note": "retryLimit"}).values == {}
    job = ElasticJob.model_validate({**GOOD, "annotations": {"example.com/note": "x"}})
    assert job.roles[0].annotations == {"example.com/note": "x"}


def test_an_annotation_at_a_role_is_an_error_and_not_without_effect():
    """Policies are the job's."""
    roles = {"trainer": {"entrypoint": "a.py", "annotations": {key("retryLimit"): "5"}}}
    with pytest.raises(JobError) as caught:
        ElasticJob.model_validate({"name": "digits", "roles": roles})

    assert str(caught.value) == (
        f"roles.trainer.annotations.{key('retryLimit')}: has no effect in a role; move this key to annotations at the top level"
    )


def test_every_problem_of_the_annotations_is_told_at_once():
    """One line each."""
    with pytest.raises(JobError) as caught:
        job_with({"retryLimit": "x", "terminalExitCodes": "y"}, labels={"fault-scheduling": "maybe"})

    assert len(caught.value.problems) == 3


def test_the_output_form_has_gos_durations_and_leaves_empty_lists_out():
    """Go knows no days: a controller would take its own default for `7d`."""
    job = ElasticJob.model_validate(
        {**GOOD, "fault_tolerance": {"terminal_exit_codes": [3, 10], "warmup_grace_period": "0.5s"}}
    )

    assert write_annotations(job) == {
        key("admissionGracePeriodDuration"): "1m",
        key("warmupGracePeriodDuration"): "0.5s",
        key("failureGracePeriodDuration"): "1m",
        key("retryPausePeriodDuration"): "1m30s",
        key("forcefulDeletionGracePeriodDuration"): "10m",
        key("deletionOnFailureGracePeriodDuration"): "0s",
        key("successTTLDuration"): "168h",
        key("retryLimit"): "3",
        key("terminalExitCodes"): "3,10",
    }


SECONDS = st.floats(min_value=1e-9, max_value=86400) | st.integers(0, 86400)
EXIT_CODES = st.lists(st.integers(0, 255), max_size=4)
TOLERANCE = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(GRACES.values(), SECONDS),
        "success_ttl": st.floats(min_value=1e-9, max_value=604800),
        "retry_limit": st.integers(0, 100),
        "terminal_exit_codes": EXIT_CODES,
        "retryable_exit_codes": EXIT_CODES,
    },
)


@given(TOLERANCE)
def test_what_is_written_reads_back_as_the_same_policies(tolerance):
    """The annotations alone make a job with equal policies, and from an AppWrapper nothing of them is clamped."""
    job = ElasticJob.model_validate({**GOOD, "fault_tolerance": tolerance})
    written = write_annotations(job)
    read = read_annotations(written)

    assert ElasticJob.model_validate({**GOOD, "annotations": written}).fault_tolerance == job.fault_tolerance
    assert read.warnings == ()
    assert {known.field: getattr(job.fault_tolerance, known.field) for known in ANNOTATIONS.values()} == {
        "terminal_exit_codes": (),
        "retryable_exit_codes": (),
        **read.values,
    }
