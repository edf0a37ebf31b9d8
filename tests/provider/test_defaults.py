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
    check_policies("train", DEFAULTS.policies)

    with pytest.raises(PlaceError) as caught:
        check_policies("train", {"fault_tolerance": {"retry_limit": "often"}})

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
