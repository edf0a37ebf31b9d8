"""Profiles: the defaults that each sets, what it rules out, and that it is resolved once."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.job import ElasticJob, JobError, compile_plan, load_job
from rallypoint.job.profiles import defaults_of
from rallypoint.job.settle import choices, unread
from rallypoint.wire.plan import Plan, Profile
from rallypoint.wire.sections import value_of

GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py"}


def plan_of(**fields) -> Plan:
    (plan,) = compile_plan(ElasticJob.model_validate({**GOOD, **fields}))
    return plan


def text_of(**fields):
    with pytest.raises(JobError) as caught:
        ElasticJob.model_validate({**GOOD, **fields})
    return str(caught.value)


#: What the three have in common: AppWrapper's periods.
PERIODS = {
    "admission_grace": 60.0,
    "warmup_grace": 300.0,
    "failure_grace": 60.0,
    "retry_pause": 90.0,
    "forceful_deletion_grace": 600.0,
    "deletion_on_failure_grace": 0.0,
    "success_ttl": 7 * 86400.0,
    "pending_timeout": 900.0,
    "max_hangs": 3,
}


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param(
            "ladder",
            {
                "retry_limit": 3,
                "node_replacements": 3,
                "no_progress_limit": 3,
                "pending_fail_strategy": 1,
                "max_restarts": 3,
                "report_interval": 1.0,
            },
            id="ladder",
        ),
        pytest.param(
            "appwrapper",
            {
                "retry_limit": 3,
                "node_replacements": 0,
                "no_progress_limit": 0,
                "pending_fail_strategy": -1,
                "max_restarts": 3,
                "report_interval": 1.0,
            },
            id="appwrapper",
        ),
        pytest.param(
            "mindcluster",
            {
                "retry_limit": 0,
                "node_replacements": 0,
                "no_progress_limit": 0,
                "pending_fail_strategy": 1,
                "max_restarts": 32767,
                "report_interval": 5.0,
            },
            id="mindcluster",
        ),
    ],
)
def test_a_profile_sets_its_defaults(profile, expected):
    """What the job does not give comes from the profile's table, and the plan has it."""
    plan = plan_of(profile=profile)

    assert plan.profile is Profile(profile)
    assert {name: value_of(plan, name) for name in (*PERIODS, *expected)} == {**PERIODS, **expected}


@pytest.mark.parametrize("profile", [pytest.param(profile.value, id=profile.value) for profile in Profile])
def test_what_is_given_wins_over_every_default(profile):
    """Also where it happens to be the default of another profile."""
    plan = plan_of(
        profile=profile,
        fault_tolerance={"retry_limit": 1, "no_progress_limit": 3, "success_ttl": "1h"},
        recovery={"max_restarts": 3},
        health={"monitor_interval": 1},
    )

    assert (plan.budgets.retry_limit, plan.budgets.no_progress_limit, plan.grace.success_ttl) == (1, 3, 3600.0)
    assert (plan.budgets.max_restarts, plan.rendezvous.report_interval) == (3, 1.0)


def test_the_models_own_defaults_are_the_ladders():
    """The reference shows them, so the table must not say otherwise."""
    job = ElasticJob.model_validate(GOOD)
    shown = {}
    for path in defaults_of(Profile.LADDER):
        block, name = path.split(".")
        shown[path] = type(getattr(job, block)).model_fields[name].default

    assert job.profile is Profile.LADDER
    assert shown == defaults_of(Profile.LADDER)


@pytest.mark.parametrize(
    ("fields", "profile"),
    [
        pytest.param({}, Profile.LADDER, id="nothing"),
        pytest.param({"labels": {"team": "vision"}}, Profile.LADDER, id="another label"),
        pytest.param({"labels": {"fault-scheduling": "grace"}}, Profile.MINDCLUSTER, id="fault-scheduling"),
        pytest.param({"labels": {"pod-rescheduling": "off"}}, Profile.MINDCLUSTER, id="pod-rescheduling, though off"),
        pytest.param({"labels": {"process-recover-enable": "pause"}}, Profile.MINDCLUSTER, id="process-recover-enable"),
        pytest.param({"labels": {"fault-retry-times": 3}}, Profile.MINDCLUSTER, id="fault-retry-times"),
        pytest.param({"annotations": {"recover-strategy": "dump"}}, Profile.MINDCLUSTER, id="recover-strategy"),
        pytest.param({"annotations": {"wait-reschedule-timeout": 60}}, Profile.MINDCLUSTER, id="wait-reschedule-timeout"),
        pytest.param({"mindcluster": {"pending_rounds": 3}}, Profile.MINDCLUSTER, id="the block"),
        pytest.param({"profile": "mindcluster"}, Profile.MINDCLUSTER, id="mindcluster by name"),
        pytest.param(
            {"annotations": {"workload.codeflare.dev.appwrapper/retryLimit": "3"}}, Profile.LADDER, id="AppWrapper's words"
        ),
        pytest.param({"profile": "appwrapper"}, Profile.APPWRAPPER, id="appwrapper by name"),
    ],
)
def test_a_profile_is_on_by_name_or_by_mindclusters_words(fields, profile):
    """Without a name, any word of MindCluster chooses its profile; the ladder is the rest."""
    assert plan_of(**fields).profile is profile


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param(
            {"profile": "strict"},
            "profile: 'strict' is not allowed; expected one of ladder, appwrapper, mindcluster",
            id="no profile",
        ),
        pytest.param(
            {"profile": "ladder", "labels": {"fault-scheduling": "grace"}},
            "labels.fault-scheduling: 'grace' is not allowed; it "
            "requires profile mindcluster, but the profile is ladder; remove one of them",
            id="MindCluster's label in the ladder",
        ),
        pytest.param(
            {"profile": "appwrapper", "annotations": {"recover-strategy": "dump"}},
            "annotations.recover-strategy: 'dump' is not allowed; it requires profile mindcluster, but the "
            "profile is appwrapper; remove one of them",
            id="MindCluster's annotation in appwrapper",
        ),
        pytest.param(
            {"profile": "ladder", "mindcluster": {"pending_rounds": 3}},
            "mindcluster: is not allowed; it requires profile mindcluster, but the profile is ladder; remove one of them",
            id="MindCluster's block in the ladder",
        ),
        pytest.param(
            {"profile": "appwrapper", "nodes": "1:2"},
            "nodes: '1:2' is not allowed; expected one number of nodes, because a job "
            "with profile appwrapper has a fixed number of nodes",
            id="an elastic world in appwrapper",
        ),
        pytest.param(
            {"profile": "appwrapper", "recovery": {"node_replacements": 1}},
            "recovery.node_replacements: 1 is not allowed; expected 0 with profile appwrapper, which replaces no nodes",
            id="replacements in appwrapper",
        ),
        pytest.param(
            {"profile": "appwrapper", "fault_tolerance": {"pending_fail_strategy": 2}},
            "fault_tolerance.pending_fail_strategy: 2 is not allowed; expected -1 with profile appwrapper, whose "
            "warm-up clock limits pending nodes",
            id="pending checks in appwrapper",
        ),
    ],
)
def test_what_a_profile_rules_out_is_an_error(fields, text):
    """It would have no effect, or another one than the profile's name promises."""
    assert text_of(**fields) == text


def test_a_role_of_several_is_named_where_its_world_is_not_fixed():
    """The path is that of the document."""
    roles = {"learner": {"entrypoint": "l.py"}, "actor": {"entrypoint": "a.py", "nodes": "2:3"}}
    with pytest.raises(JobError, match=r"^roles\.actor\.nodes: '2:3' is not allowed"):
        ElasticJob.model_validate({"name": "rl", "profile": "appwrapper", "roles": roles})


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="ladder"),
        pytest.param({"profile": "appwrapper", "nodes": 2}, id="appwrapper"),
        pytest.param({"labels": {"fault-scheduling": "grace", "fault-retry-times": "7"}}, id="mindcluster by its labels"),
        pytest.param(
            {
                "annotations": {"recover-strategy": "exit , retry", "workload.codeflare.dev.appwrapper/retryLimit": "5"},
                "labels": {"fault-scheduling": "grace"},
                "env": {"MINDIO_WAIT_MINDX_TIME": 60},
            },
            id="everything at once",
        ),
    ],
)
def test_a_profile_is_resolved_once(fields):
    """The canonical document names it and has every default, and reads back as an equal job with an equal plan."""
    job = ElasticJob.model_validate({**GOOD, **fields})
    again = ElasticJob.model_validate(job.to_document())

    assert job.to_document()["profile"] == job.profile.value
    assert again == job
    assert again.to_document() == job.to_document()
    assert compile_plan(again) == compile_plan(job)


def test_which_values_were_given_is_known_and_survives_the_way_to_the_backend():
    """A value counts as given where the document or an annotation says it, also when it is the default."""
    job = load_job(
        GOOD,
        profile="appwrapper",
        annotations={"workload.codeflare.dev.appwrapper/retryLimit": "5"},
        recovery={"max_restarts": 3},
        logs={"dir": "logs"},
    )
    given = {choice.path: (choice.value, choice.default) for choice in choices(job) if choice.given}
    defaults = {choice.path: choice.value for choice in choices(job) if not choice.given}

    assert given == {"fault_tolerance.retry_limit": (5, 3), "recovery.max_restarts": (3, 3)}
    assert defaults["recovery.node_replacements"] == 0
    assert defaults["fault_tolerance.success_ttl"] == "7d"


def test_the_labels_of_a_job_are_those_of_all_its_pods():
    """A role's own win over them, and are kept apart when the job is saved."""
    roles = {"learner": {"entrypoint": "l.py", "labels": {"team": "rl", "part": "l"}}, "actor": {"entrypoint": "a.py"}}
    job = ElasticJob.model_validate({"name": "rl", "labels": {"team": "vision", "cost": 7}, "roles": roles})

    assert [role.labels for role in job.roles] == [{"team": "rl", "cost": "7", "part": "l"}, {"team": "vision", "cost": "7"}]
    assert [role.get("labels") for role in job.to_document()["roles"]] == [{"team": "rl", "part": "l"}, None]
    assert ElasticJob.model_validate(job.to_document()) == job


def test_a_single_role_with_labels_of_its_own_is_written_as_a_list():
    """Written short, they would be the job's."""
    job = ElasticJob.model_validate({"name": "digits", "roles": [{"entrypoint": "a.py", "labels": {"part": "l"}}]})

    assert [role["labels"] for role in job.to_document()["roles"]] == [{"part": "l"}]
    assert ElasticJob.model_validate(job.to_document()) == job


def test_words_that_are_read_as_policies_are_told_from_the_others():
    """A backend without pods says of the others that they have no effect there, and must not say it of these."""
    words = {"fault-scheduling": "grace", "recover-strategy": "dump", "workload.codeflare.dev.appwrapper/retryLimit": "3"}

    assert unread({**words, "team": "vision"}) == {"team": "vision"}
