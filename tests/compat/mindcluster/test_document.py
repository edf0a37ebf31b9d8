"""MindCluster's labels and annotations: what they set in the plan, and what is an error at submission."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.compat.mindcluster.document import STRATEGIES
from rallypoint.job import ElasticJob, JobError, compile_plan
from rallypoint.wire.plan import Scheduling

GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py", "profile": "mindcluster"}
GRACE = {"fault-scheduling": "grace"}


def plan_of(labels=None, annotations=None, **fields):
    document = {**GOOD, "labels": labels or {}, "annotations": annotations or {}, **fields}
    (plan,) = compile_plan(ElasticJob.model_validate(document))
    return plan


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        pytest.param({}, {}, Scheduling(), id="nothing: all off"),
        pytest.param({"fault-scheduling": "grace"}, {}, Scheduling(fault_scheduling="grace"), id="grace"),
        pytest.param({"fault-scheduling": "force"}, {}, Scheduling(fault_scheduling="force"), id="force"),
        pytest.param({"fault-scheduling": "off"}, {}, Scheduling(), id="off"),
        pytest.param({"pod-rescheduling": "on"}, {}, Scheduling(pod_rescheduling=True), id="pod-rescheduling on"),
        pytest.param({"pod-rescheduling": "On"}, {}, Scheduling(), id="E23: On is not on"),
        pytest.param({"pod-rescheduling": "true"}, {}, Scheduling(), id="E23: true is not on"),
        pytest.param({"pod-rescheduling": "off"}, {}, Scheduling(), id="E23: off"),
        pytest.param({"process-recover-enable": "on"}, {}, Scheduling(process_recover="on"), id="process-recover-enable on"),
        pytest.param({"fault-retry-times": "3"}, {}, Scheduling(fault_retry_times=3), id="fault-retry-times"),
        pytest.param({"fault-retry-times": 0}, {}, Scheduling(), id="fault-retry-times 0"),
        pytest.param({}, {"wait-reschedule-timeout": "30"}, Scheduling(wait_reschedule_timeout=30.0), id="shortest wait"),
        pytest.param({}, {"wait-reschedule-timeout": 270}, Scheduling(wait_reschedule_timeout=270.0), id="longest wait"),
        pytest.param({}, {"recover-strategy": ""}, Scheduling(), id="E2: an empty strategy is none"),
        pytest.param(
            {},
            {"recover-strategy": "exit"},
            Scheduling(recover_strategy=("exit",), process_recover="on"),
            id="E8: a strategy turns process-recover-enable on",
        ),
        pytest.param(
            {"process-recover-enable": "pause", **GRACE},
            {"recover-strategy": "recover"},
            Scheduling(fault_scheduling="grace", recover_strategy=("recover",), process_recover="pause"),
            id="V13: a pause by the user stays",
        ),
        pytest.param(
            {},
            {"recover-strategy": "elastic-training,dump"},
            Scheduling(recover_strategy=("elastic-training", "dump"), process_recover="on"),
            id="S16: elastic training without rescheduling",
        ),
        pytest.param(
            {}, {"huawei.com/recover_policy_path": "pod"}, Scheduling(never_upgrade=True), id="never up from pods to the job"
        ),
    ],
)
def test_labels_and_annotations_reach_the_plan(labels, annotations, expected):
    """Each has the meaning that it has in MindCluster."""
    assert plan_of(labels, annotations).scheduling == expected


@given(st.lists(st.sampled_from(STRATEGIES), min_size=1), st.sampled_from([",", ", ", " ,\t"]))
def test_the_order_of_strategies_means_nothing(words, comma):
    """Whatever their order, blanks and repetitions, the plan has them in the order in which they are tried."""
    scheduling = plan_of(GRACE, {"recover-strategy": comma.join(words)}).scheduling

    assert scheduling.recover_strategy == tuple(word for word in STRATEGIES if word in words)


@pytest.mark.parametrize(
    ("where", "key", "text", "allowed"),
    [
        pytest.param("labels", "fault-scheduling", "graceful", "one of grace, force, off", id="fault-scheduling"),
        pytest.param("labels", "fault-scheduling", "external-grace", "one of grace, force, off", id="an outside controller"),
        pytest.param("labels", "process-recover-enable", "yes", "one of on, pause, off", id="process-recover-enable"),
        pytest.param("labels", "fault-retry-times", "three", "a whole number from 0 to 32767", id="retries in words"),
        pytest.param("labels", "fault-retry-times", "-1", "a whole number from 0 to 32767", id="retries below zero"),
        pytest.param(
            "annotations", "wait-reschedule-timeout", "29", "a whole number of seconds from 30 to 270", id="too short a wait"
        ),
        pytest.param(
            "annotations", "wait-reschedule-timeout", "271", "a whole number of seconds from 30 to 270", id="too long a wait"
        ),
        pytest.param(
            "annotations", "wait-reschedule-timeout", "4m", "a whole number of seconds from 30 to 270", id="a wait with a unit"
        ),
        pytest.param(
            "annotations",
            "recover-strategy",
            "retry,restart",
            "some of retry, recover-in-place, recover, elastic-training, dump, exit, as a list or separated by "
            "commas; 'restart' is unknown",
            id="an unknown strategy",
        ),
        pytest.param(
            "annotations", "huawei.com/recover_policy_path", "job", "pod; otherwise, omit the annotation", id="an unknown path"
        ),
    ],
)
def test_a_wrong_word_is_told_with_its_key_and_what_is_allowed(where, key, text, allowed):
    """MindCluster would take its default in silence."""
    with pytest.raises(JobError) as caught:
        plan_of(**{where: {key: text}})

    assert str(caught.value) == (f"{where}.{key}: '{text}' is not allowed; expected {allowed}")


@pytest.mark.parametrize("word", ["retry", "recover-in-place", "recover"])
@pytest.mark.parametrize(
    ("labels", "path"),
    [
        pytest.param({}, "mindcluster.fault_scheduling: 'off'", id="no fault-scheduling"),
        pytest.param({"fault-scheduling": "force"}, "labels.fault-scheduling: 'force'", id="fault-scheduling force"),
    ],
)
def test_recovery_of_processes_needs_a_graceful_deletion(word, labels, path):
    """With any other mode it could never act."""
    with pytest.raises(JobError) as caught:
        plan_of(labels, {"recover-strategy": f"{word},dump"})

    assert str(caught.value) == (f"{path} is not allowed with the recovery strategies {word}; expected 'grace'")


@pytest.mark.parametrize("grace", ["0s", "15m", "1h"])
def test_a_graceful_end_is_shorter_than_the_wait_for_it(grace):
    """Otherwise each one would be forced, or none would be graceful."""
    with pytest.raises(JobError) as caught:
        plan_of(GRACE, recovery={"stop_grace_period": grace})

    assert str(caught.value).endswith("is not allowed; expected more than 0s and less than mindcluster.grace_over_time (15m)")
    assert plan_of({"fault-scheduling": "force"}, recovery={"stop_grace_period": grace}).scheduling.fault_scheduling == "force"


def test_the_block_says_what_labels_cannot():
    """And everything that they can, so that a job needs no labels."""
    block = {
        "fault_scheduling": "grace",
        "pod_rescheduling": True,
        "process_recover": "pause",
        "recover_strategy": ["dump", "recover"],
        "fault_retry_times": 7,
        "wait_reschedule_timeout": "2m",
        "grace_over_time": "1h",
        "pending_rounds": 5,
        "pending_interval": "3s",
        "elastic_wait": "40s",
        "graceful_tolerance": True,
        "never_upgrade": True,
    }

    assert plan_of(mindcluster=block).scheduling == Scheduling(
        fault_scheduling="grace",
        pod_rescheduling=True,
        process_recover="pause",
        recover_strategy=("recover", "dump"),
        fault_retry_times=7,
        wait_reschedule_timeout=120.0,
        grace_over_time=3600.0,
        pending_rounds=5,
        pending_interval=3.0,
        elastic_wait=40.0,
        graceful_tolerance=True,
        never_upgrade=True,
    )


def test_a_label_and_the_block_must_agree():
    """Given twice and different, nobody can know which one is meant."""
    assert plan_of({"fault-retry-times": "3"}, mindcluster={"fault_retry_times": 3}).scheduling.fault_retry_times == 3
    with pytest.raises(JobError) as caught:
        plan_of({"fault-retry-times": "3"}, mindcluster={"fault_retry_times": 4})

    assert str(caught.value) == (
        "labels.fault-retry-times: '3' is not allowed; it conflicts with mindcluster.fault_retry_times; set one of them"
    )


@pytest.mark.parametrize(
    ("times", "resets", "replacements"),
    [
        pytest.param("0", 0, 0, id="none"),
        pytest.param("7", 7, 7, id="some"),
        pytest.param("500", 500, 500, id="more than a job file may give as retry_limit"),
    ],
)
def test_the_budgets_follow_fault_retry_times(times, resets, replacements):
    """Where the job gives none of its own."""
    plan = plan_of({"fault-retry-times": times})
    own = plan_of({"fault-retry-times": times}, fault_tolerance={"retry_limit": 2}, recovery={"node_replacements": 1})

    assert (plan.budgets.retry_limit, plan.budgets.node_replacements, plan.scheduling.fault_retry_times) == (
        resets,
        replacements,
        int(times),
    )
    assert (own.budgets.retry_limit, own.budgets.node_replacements) == (2, 1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("60", 50.0, id="60"),
        pytest.param("10", 0.0, id="the least that counts"),
        pytest.param("3600", 3590.0, id="the most that counts"),
        pytest.param("9", 20.0, id="too little"),
        pytest.param("3601", 20.0, id="too much"),
        pytest.param("soon", 20.0, id="no number"),
    ],
)
def test_elastic_training_waits_as_mindio_is_told_to(text, seconds):
    """Ten seconds less than the variable of the workers says, where it is within its bounds."""
    env = {"MINDIO_WAIT_MINDX_TIME": text}

    assert plan_of(env=env).scheduling.elastic_wait == seconds
    assert plan_of(env=env, mindcluster={"elastic_wait": 5}).scheduling.elastic_wait == 5.0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param(
            {"annotations": GRACE},
            "annotations.fault-scheduling: has no effect in annotations; move this key to labels",
            id="a label",
        ),
        pytest.param(
            {"labels": {"recover-strategy": "dump"}},
            "labels.recover-strategy: has no effect in labels; move this key to annotations",
            id="an annotation",
        ),
    ],
)
def test_a_word_in_the_wrong_place_is_an_error(fields, text):
    """It would be without effect."""
    with pytest.raises(JobError) as caught:
        plan_of(**fields)

    assert str(caught.value) == text


def test_the_plans_of_other_profiles_have_no_such_settings():
    """Nothing of MindCluster acts unless it was asked for."""
    (plan,) = compile_plan(ElasticJob.model_validate({"name": "digits", "entrypoint": "train.py"}))

    assert plan.scheduling is None


def test_the_profiles_own_report_interval_may_be_written():
    """The lease that it is compared with is the profile's, not that of another one."""
    assert plan_of(health={"report_interval": "5s"}).rendezvous.report_interval == 5.0
    with pytest.raises(JobError) as caught:
        plan_of(health={"report_interval": "5s", "node_lease": "10s"})

    assert str(caught.value) == ("health.report_interval: '5s' is not allowed; expected less than half of node_lease (10s)")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param(
            {"fault_tolerance": {"forceful_deletion_grace_period": "1m"}},
            "fault_tolerance.forceful_deletion_grace_period: '1m' has no effect with profile mindcluster; set "
            "mindcluster.grace_over_time",
            id="forceful deletion",
        ),
        pytest.param(
            {"recovery": {"replace_delay": "5s"}},
            "recovery.replace_delay: '5s' has no effect with profile mindcluster; the scheduler replaces a lost pod at once",
            id="replace delay",
        ),
    ],
)
def test_a_setting_without_effect_is_an_error(fields, text):
    """Other profiles read it, and this one never."""
    with pytest.raises(JobError) as caught:
        plan_of(**fields)

    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("where", "key", "text", "told"),
    [
        pytest.param(
            "labels", "fault-schedulling", "grace", "is not a known MindCluster name; did you mean 'fault-scheduling'?",
            id="a slip",
        ),
        pytest.param(
            "labels", "fault_retry_times", "3", "is not a known MindCluster name; did you mean 'fault-retry-times'?",
            id="underscores",
        ),
        pytest.param(
            "annotations", "recover-stategy", "dump", "is not a known MindCluster name; did you mean 'recover-strategy'?",
            id="an annotation",
        ),
        pytest.param(
            "labels", "subHealthyStrategy", "hotSwitch", "'hotSwitch' is not allowed; expected ignore (no device "
                "here reports sub-health, so graceExit, forceExit and hotSwitch have no effect)",
            id="hotSwitch",
        ),
    ],
)  # fmt: skip
def test_a_name_that_nothing_reads_is_an_error(where, key, text, told):
    """In every profile: with the slip nothing may tell that MindCluster's was meant."""
    document = {"name": "digits", "entrypoint": "train.py", where: {key: text}}
    with pytest.raises(JobError) as caught:
        ElasticJob.model_validate(document)

    assert str(caught.value) == f"{where}.{key}: {told}"


def test_other_labels_are_nobodys_slip():
    """Most labels of pods are no business of MindCluster's."""
    labels = {
        "app": "digits",
        "team/fault-budget": "3",
        "framework": "jax",
        "subHealthyStrategy": "ignore",
        "schedule": "night",
    }
    (plan,) = compile_plan(ElasticJob.model_validate({"name": "digits", "entrypoint": "train.py", "labels": labels}))

    assert plan.scheduling is None


def test_a_setting_without_effect_is_not_shown() -> None:
    """A job of the profile is written without the settings that it refuses; read back it is the same job."""
    job = ElasticJob.model_validate(GOOD)
    document = job.to_document()

    assert "forceful_deletion_grace_period" not in document["fault_tolerance"]
    assert "replace_delay" not in document["recovery"]
    assert ElasticJob.model_validate(document) == job
    other = ElasticJob.model_validate({**GOOD, "profile": "ladder"}).to_document()
    assert "forceful_deletion_grace_period" in other["fault_tolerance"]
