"""Operators whose place is that of a connection."""

from __future__ import annotations

import json

import pytest

from rallypoint.operators import AppWrapperOperator, ElasticTrainingOperator
from rallypoint.provider.errors import OptionError
from tests.operators.tasks import operator
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, Store, context

EXTRA = {
    "platform": "kubernetes",
    "namespace": "training",
    "image": "train:1",
    "account": "nodes",
    "queue": "gpus",
    "supervisor_image": "tools:1",
}


@pytest.fixture(autouse=True)
def connections(monkeypatch):
    """A cluster and a folder of this machine."""
    for name, extra in (("TRAINING", EXTRA), ("HERE", {"home": "/data/rallypoint"})):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "rallypoint", "extra": extra}))


def claim_of(op):
    return op._claim(context(FakeTask()), "digits")


def test_the_connection_says_where_and_the_claim_how_to_find_it_again():
    """Its platform decides how often is looked; who takes the job on is its default."""
    claim = claim_of(ElasticTrainingOperator(task_id="train", conn_id="training", entrypoint="train.py"))

    assert (claim.conn_id, claim.backend, claim.namespace) == ("training", "kubernetes", "training")
    assert (claim.poll_interval, claim.supervisor_image) == (15.0, "tools:1")


def test_the_operator_wins():
    """Argument by argument."""
    op = ElasticTrainingOperator(
        task_id="train", conn_id="training", namespace="mine", supervisor_image="mine:1", image="mine:2", entrypoint="train.py"
    )
    claim, (role,) = claim_of(op), op.build_job(context(FakeTask())).roles

    assert (claim.namespace, claim.supervisor_image) == ("mine", "mine:1")
    assert (role.image, role.queue) == ("mine:2", "gpus")


def test_paths_are_those_of_the_image_where_the_connection_names_a_cluster(tmp_path):
    """And those of this machine where it names a folder here."""
    there = ElasticTrainingOperator(task_id="train", conn_id="training", entrypoint="train.py", checkpoint_dir="runs")
    here = ElasticTrainingOperator(task_id="train", conn_id="here", entrypoint="train.py", workdir=str(tmp_path))

    assert there.build_job(context(FakeTask())).roles[0].checkpoint_dir == "runs"
    assert here.build_job(context(FakeTask())).roles[0].workdir == str(tmp_path)
    assert claim_of(here).home == "/data/rallypoint"


@pytest.mark.argument("namespace")
def test_a_job_says_where_it_is_and_the_task_overrules_it():
    """Above the connection, whose platform it shares."""
    job = {"entrypoint": "train.py", "namespace": "team", "annotations": {"platform": "pyk8s"}}
    said = ElasticTrainingOperator(task_id="train", conn_id="training", job=job)
    overruled = ElasticTrainingOperator(task_id="train", conn_id="training", namespace="mine", job=job)

    assert [op.build_job(context(FakeTask())).namespace for op in (said, overruled)] == ["team", "mine"]
    assert [claim_of(op).namespace for op in (said, overruled)] == ["team", "mine"]


def test_the_name_of_a_connection_may_be_a_template():
    """As all that says where a job is."""
    op = ElasticTrainingOperator(task_id="train", conn_id="{{ params.where }}", entrypoint="train.py")
    op.render_template_fields({"params": {"where": "training"}})

    assert claim_of(op).namespace == "training"


def test_what_a_task_notes_names_the_connection():
    """Whoever looks for the job later reads the connection again."""
    fake, store = FakeBackend(verdict=SUCCESS), Store()

    operator(fake, conn_id="here").execute(context(FakeTask(), task_state_store=store))

    assert store["rallypoint_job"]["conn_id"] == "here"
    assert store["rallypoint_job"]["home"] == "/data/rallypoint"


def test_settings_have_what_the_connection_says():
    """Where they leave it out."""
    op = AppWrapperOperator(task_id="train", conn_id="training", settings={"jobName": "digits", "queueName": "own"})

    text = json.dumps(op.build_work(context(FakeTask())).manifest)

    assert '"image": "train:1"' in text
    assert '"serviceAccountName": "nodes"' in text
    assert '"kueue.x-k8s.io/queue-name": "own"' in text


def test_an_image_for_supervisors_where_there_are_no_pods():
    """It is found when the task runs, since only the connection knows."""
    op = ElasticTrainingOperator(task_id="train", conn_id="here", supervisor_image="tools:1", entrypoint="train.py")

    with pytest.raises(
        OptionError,
        match="supervisor_image: 'tools:1' is not allowed; expected no value, because the backend is 'local'",
    ):
        claim_of(op)
