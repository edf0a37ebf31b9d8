"""Operator over document over connection."""

from __future__ import annotations

import pytest

from rallypoint.provider.connections.connection import Defaults
from rallypoint.provider.connections.defaults import check_policies, settings_with
from rallypoint.provider.connections.locating import PlaceError
from rallypoint.provider.document import build_job

DEFAULTS = Defaults(
    image="conn:1",
    account="conn",
    coordinator_account="conn-coordinator",
    queue="conn",
    policies={"fault_tolerance": {"retry_limit": 7, "failure_grace_period": "7s"}, "recovery": {"max_restarts": 7}},
)


def build(document, fields=None):
    return build_job({"entrypoint": "train.py", **document}, fields or {}, name="digits", base=None, defaults=DEFAULTS)


def test_a_job_that_says_nothing_has_what_the_connection_says():
    """Place by place, and policy by policy."""
    job = build({})
    (role,) = job.roles

    assert (role.image, role.service_account, role.coordinator_service_account) == ("conn:1", "conn", "conn-coordinator")
    assert role.queue == "conn"
    assert (job.fault_tolerance.retry_limit, job.recovery.max_restarts) == (7, 7)


def test_the_document_wins_and_the_operator_over_it():
    """Field by field, so that the rest of a block stays."""
    document = {"image": "doc:1", "queue": "doc", "fault_tolerance": {"retry_limit": 5}, "recovery": {"max_restarts": 5}}

    job = build(document, {"image": "op:1", "recovery": {"max_restarts": 3}})
    (role,) = job.roles

    assert (role.image, role.queue, role.service_account) == ("op:1", "doc", "conn")
    assert (job.fault_tolerance.retry_limit, job.fault_tolerance.failure_grace_period) == (5, 7.0)
    assert job.recovery.max_restarts == 3


def test_roles_have_it_each():
    """A job of several roles is completed role by role."""
    roles = [{"name": "a", "entrypoint": "a.py", "image": "own:1"}]

    job = build_job({"roles": roles}, {}, name="digits", base=None, defaults=DEFAULTS)

    assert [(role.name, role.image, role.queue) for role in job.roles] == [("a", "own:1", "conn")]


def test_what_annotations_say_is_said():
    """An AppWrapper's annotations are the job's own word, and not given twice."""
    key = "workload.codeflare.dev.appwrapper/retryLimit"

    assert build({"annotations": {key: "2"}}).fault_tolerance.retry_limit == 2


def test_a_wrong_policy_is_told_as_the_connections():
    """The job's own rules judge it, and nobody looks for it in the DAG."""
    check_policies("train", DEFAULTS)

    with pytest.raises(PlaceError) as caught:
        check_policies("train", Defaults(policies={"fault_tolerance": {"retry_limit": "often"}}))

    assert str(caught.value).startswith("connection 'train': policies.fault_tolerance.retry_limit: 'often' is not allowed")


def test_settings_are_completed_too():
    """Null is said: it takes a default of the chart back, and ours."""
    document = {"jobName": "digits", "queueName": None}

    assert settings_with(document, DEFAULTS) == {
        "jobName": "digits",
        "queueName": None,
        "containerImage": "conn:1",
        "serviceAccountName": "conn",
    }


def test_arguments_of_a_connection_are_beneath_all_that_a_job_says():
    """The job file over its annotation, that over the environment, and that over the connection."""
    defaults = Defaults(arguments={"max_restarts": 9, "precheck": 1}, policies={"health": {"hang_detection": 2}})

    def restarts(document, environ=None):
        whole = {"entrypoint": "train.py", **document}
        job = build_job(whole, {}, name="digits", base=None, defaults=defaults, environ=environ or {})
        assert (job.health.precheck, job.health.hang_detection) == (1, 2)
        return job.recovery.max_restarts

    annotated = {"annotations": {"max_restarts": "5"}}
    assert restarts({**annotated, "max_restarts": 4}, {"RALLYPOINT_MAX_RESTARTS": "6"}) == 4
    assert restarts(annotated, {"RALLYPOINT_MAX_RESTARTS": "6"}) == 5
    assert restarts({}, {"RALLYPOINT_MAX_RESTARTS": "6"}) == 6
    assert restarts({}) == 9


def test_an_argument_of_the_job_wins_over_a_policy_of_the_connection():
    """Although it stands at another place of the document, or among the annotations."""
    assert build({"max_restarts": 4}).recovery.max_restarts == 4
    assert build({"annotations": {"rallypoint.dev/max_restarts": "4"}}).recovery.max_restarts == 4


def test_the_operators_field_wins_over_an_argument_of_the_document():
    """Whatever the argument is called there."""
    assert build({"nnodes": 3}, {"nodes": 2}).roles[0].nodes.max == 2


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        pytest.param(
            Defaults(arguments={"max_restarts": 0}),
            "connection 'train': arguments.max_restarts: 0 is not allowed; expected a whole number of 1 or more",
            id="a value",
        ),
        pytest.param(
            Defaults(arguments={"max_restarts": 4}, policies={"recovery": {"max_restarts": 5}}),
            "connection 'train': arguments.max_restarts: 4 is not allowed; "
            "it conflicts with recovery.max_restarts; set one of them",
            id="two that disagree",
        ),
    ],
)
def test_a_wrong_argument_is_told_as_the_connections(defaults, told):
    """Also where it disagrees with a policy beside it."""
    with pytest.raises(PlaceError) as caught:
        check_policies("train", defaults)

    assert str(caught.value) == told
