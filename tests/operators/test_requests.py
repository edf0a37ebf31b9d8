"""Tasks that ask something of a job that another task owns."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.backends.requests import submit_or_adopt
from rallypoint.job import load_job
from rallypoint.operators import DeleteJobOperator, ResizeJobOperator
from rallypoint.provider.errors import JobRefused, OptionError
from rallypoint.wire.node_range import Size
from tests.operators.tasks import operator
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context


class Resize(ResizeJobOperator):
    def __init__(self, *, fake, **kwargs):
        super().__init__(task_id="resize", **kwargs)
        self.fake = fake

    def open_backend(self):
        return self.fake


class Delete(DeleteJobOperator):
    def __init__(self, *, fake, **kwargs):
        super().__init__(task_id="delete", **kwargs)
        self.fake = fake

    def open_backend(self):
        return self.fake


@pytest.fixture
def fake():
    """A place with one job, `digits`, that nobody supervises yet."""
    made = FakeBackend()
    job = load_job(name="digits", entrypoint=["train"], nodes="1:2")
    asyncio.run(submit_or_adopt(made, made.plan(job), owner="try-1"))
    return made


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"nodes": "2:4"}, id="as text"),
        pytest.param({"min_nodes": 2, "max_nodes": 4}, id="as numbers"),
        pytest.param({"min_nodes": "2", "max_nodes": "4"}, id="as rendered templates"),
    ],
)
def test_a_job_is_resized(fake, words):
    """The wish is in the record; asked for twice it is asked for once."""
    told = [Resize(fake=fake, job_name="digits", **words).execute(context(FakeTask())) for _ in range(2)]

    assert fake.record("digits").size == Size(min_nodes=2, max_nodes=4)
    assert told[0] == {"job": "digits", "min_nodes": 2, "max_nodes": 4, "changed": True}
    assert told[1]["changed"] is False
    assert fake.closed == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param({"job_name": "other", "nodes": 2}, "job 'other' not found", id="no job"),
        pytest.param(
            {"job_name": "digits", "nodes": "a:b"},
            "nodes: 'a:b' is not allowed; expected N or MIN:MAX",
            id="no size",
        ),
        pytest.param({"job_name": "digits", "nodes": 0}, "nodes: 0 is not allowed", id="none"),
        pytest.param(
            {"job_name": "digits", "nodes": 2, "role": "a"},
            "role 'a' is not allowed, because the job has only one role",
            id="role",
        ),
    ],
)
def test_what_cannot_be_is_not_tried_again(fake, words, says):
    """Trying again cannot help."""
    with pytest.raises(JobRefused, match=says):
        Resize(fake=fake, **words).execute(context(FakeTask()))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"nodes": 2, "min_nodes": 2, "max_nodes": 2}, id="both"),
        pytest.param({"min_nodes": 2}, id="a half"),
    ],
)
def test_a_size_is_given_in_one_way(words):
    """Found when the DAG is parsed."""
    with pytest.raises(OptionError, match="nodes"):
        ResizeJobOperator(task_id="resize", job_name="digits", **words)


def test_a_job_is_deleted_once(fake):
    """With nobody to supervise it the task sees to it itself, whether it would wait or not; then there is none any more."""
    assert Delete(fake=fake, job_name="digits", wait_for_completion=False).execute(context(FakeTask())) is True
    assert asyncio.run(fake.load("digits")) is None

    assert Delete(fake=fake, job_name="digits").execute(context(FakeTask())) is False
    with pytest.raises(JobRefused, match="job 'digits' not found"):
        Delete(fake=fake, job_name="digits", missing_ok=False).execute(context(FakeTask()))


def test_the_job_of_a_task_that_ended_is_deleted_by_a_later_one():
    """A teardown, say."""
    fake, ti = FakeBackend(verdict=SUCCESS), FakeTask()
    operator(fake).execute(context(ti))

    assert Delete(fake=fake, job_name=ti.pushed["job_name"]).execute(context(FakeTask(id="other"))) is True
    assert asyncio.run(fake.load(ti.pushed["job_name"])) is None
