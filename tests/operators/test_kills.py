"""`on_kill` of a task that supervises its job itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rallypoint.backends.requests import submit_or_adopt
from rallypoint.provider.errors import TrainingDeleted
from rallypoint.supervision.record import Phase
from tests.operators.tasks import operator
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context
from tests.waiting import eventually


def _in_thread(op, ti):
    """Run a task as a worker does, beside a test that plays the signal's handler."""
    errors = []

    def work():
        try:
            op.execute(context(ti))
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, errors


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed"])
def test_a_task_that_was_ended_takes_its_job_with_it(state):
    """Marked failed or successful while it runs: the job is deleted, by a supervisor that outlives the task's process."""
    fake, ti = FakeBackend(), FakeTask()
    op = operator(fake, state=state)
    thread, errors = _in_thread(op, ti)
    eventually(lambda: fake.started)

    op.on_kill()

    thread.join(10)
    assert [type(error) for error in errors] == [TrainingDeleted]
    assert op.left == [ti.pushed["job_name"]]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("running", id="a worker is redeployed"),
        pytest.param("deferred", id="deferred"),
        pytest.param("queued", id="cleared, queued again"),
        pytest.param("restarting", id="cleared while it ran"),
        pytest.param(None, id="no state"),
        pytest.param(OSError("no API"), id="Airflow does not answer"),
    ],
)
def test_a_task_that_merely_loses_its_process_leaves_its_job(state):
    """The next try adopts it."""
    fake, ti = FakeBackend(), FakeTask()
    op = operator(fake, state=state)
    thread, errors = _in_thread(op, ti)
    eventually(lambda: fake.started)
    op.on_kill()
    eventually(lambda: op.asked)

    assert not fake.record(ti.pushed["job_name"]).deletion
    fake.verdict = SUCCESS
    thread.join(10)
    assert errors == []


def test_a_job_that_belongs_to_the_next_try_is_left_alone():
    """A late signal of an overtaken try does not reach its successor's job."""
    fake, ti = FakeBackend(), FakeTask()
    op = operator(fake, state="failed")
    thread, _ = _in_thread(op, ti)
    eventually(lambda: fake.started)
    name = ti.pushed["job_name"]
    asyncio.run(submit_or_adopt(fake, fake.submitted[0], owner="try-2"))

    op.on_kill()
    fake.verdict = SUCCESS
    thread.join(10)

    assert not fake.record(name).deletion
    assert op.left == []


def test_keep_job_keeps_it():
    """`on_kill_action="keep_job"`: ended tasks leave their jobs."""
    fake, ti = FakeBackend(), FakeTask()
    op = operator(fake, state="failed", on_kill_action="keep_job")
    thread, errors = _in_thread(op, ti)
    eventually(lambda: fake.started)

    op.on_kill()
    fake.verdict = SUCCESS

    thread.join(10)
    assert (errors, op.left) == ([], [])


class _FullOnce(FakeBackend):
    """The first wish to delete cannot be written down."""

    refused = 0

    async def save(self, record, *, version, blueprint=None):
        if record.deletion and not self.refused:
            self.refused += 1
            raise OSError("no space left on device")
        return await super().save(record, version=version, blueprint=blueprint)


@pytest.mark.parametrize(
    "again", [pytest.param(False, id="the job ends well"), pytest.param(True, id="the signal comes again")]
)
def test_a_kill_that_cannot_be_written_down_breaks_nothing(again, capsys):
    """A full disk is told; the task keeps listening, and the result of its job stays its result."""
    fake, ti = _FullOnce(), FakeTask()
    op = operator(fake, state="failed")
    thread, errors = _in_thread(op, ti)
    eventually(lambda: fake.started)
    op.on_kill()
    eventually(lambda: fake.refused)

    if again:
        op.on_kill()
    else:
        fake.verdict = SUCCESS

    thread.join(10)
    assert [type(error) for error in errors] == ([TrainingDeleted] if again else [])
    assert "no space left on device" in capsys.readouterr().out


def test_on_kill_of_a_task_that_does_not_run_does_nothing():
    """Airflow calls it after a time-out, too, when the event loop is gone."""
    fake = FakeBackend()

    operator(fake).on_kill()

    assert asyncio.run(fake.names()) == ()


def test_the_phase_of_a_cancelled_job_is_known_to_the_record():
    """Deletion is asked for in the record; the loop that drives the job sees it through and purges the record."""
    fake, ti = FakeBackend(), FakeTask()
    op = operator(fake, state="failed")
    thread, _ = _in_thread(op, ti)
    eventually(lambda: fake.started)
    assert fake.record(ti.pushed["job_name"]).phase in (Phase.RESUMING, Phase.RUNNING)

    op.on_kill()
    thread.join(10)

    assert asyncio.run(fake.names()) == ()
