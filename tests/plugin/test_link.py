"""The link from a task instance to its page, and the page that a task keeps."""

from __future__ import annotations

import pytest

from rallypoint.provider.links import ElasticTrainingLink, page_path
from rallypoint.report.model import State
from rallypoint.report.page.published import PAGE_KEY
from rallypoint.report.page.values import Page
from rallypoint.wire import codec
from tests.operators.tasks import FAILURE, operator
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context


class Names:
    def __init__(self, map_index=-1, run_id="manual__2026-03-14T09:26:00+00:00"):
        self.dag_id, self.run_id, self.task_id, self.map_index = "nightly", run_id, "group.train", map_index


@pytest.mark.parametrize(
    ("names", "path"),
    [
        pytest.param(Names(run_id="r1"), "dags/nightly/runs/r1/tasks/group.train/plugin/rallypoint", id="not mapped"),
        pytest.param(
            Names(map_index=None, run_id="r1"), "dags/nightly/runs/r1/tasks/group.train/plugin/rallypoint", id="unknown"
        ),
        pytest.param(
            Names(map_index=0, run_id="r1"), "dags/nightly/runs/r1/tasks/group.train/mapped/0/plugin/rallypoint", id="mapped"
        ),
        pytest.param(
            Names(),
            "dags/nightly/runs/manual__2026-03-14T09%3A26%3A00%2B00%3A00/tasks/group.train/plugin/rallypoint",
            id="escaped",
        ),
    ],
)
def test_the_link_leads_to_the_tab(names, path):
    """The route of the UI, for mapped task instances as well."""
    assert page_path(names) == path


def test_the_link_is_there_while_the_task_runs():
    """It is stored before the job is submitted, under the key where Airflow's UI looks for it."""
    seen = {}

    class Watched(FakeBackend):
        async def submit(self, blueprint, *, owner):
            seen.update(ti.pushed)
            return await super().submit(blueprint, owner=owner)

    ti = FakeTask()
    operator(Watched(verdict=SUCCESS)).execute(context(ti))

    link = ElasticTrainingLink()
    assert seen[link.xcom_key] == link.get_link(None, ti_key=ti)
    assert seen[link.xcom_key].endswith("/plugin/rallypoint")


@pytest.mark.parametrize(("verdict", "state"), [(SUCCESS, State.SUCCEEDED), (FAILURE, State.FAILED)], ids=["well", "badly"])
def test_a_task_keeps_the_page_of_a_job_that_it_deletes(verdict, state):
    """However it ended, and also where nothing else of it stays."""
    fake, ti = FakeBackend(verdict=verdict), FakeTask()
    op = operator(fake, on_finish_action="delete_job")
    if state is State.SUCCEEDED:
        op.execute(context(ti))
    else:
        with pytest.raises(Exception, match="WorkersFailed"):
            op.execute(context(ti))

    page = codec.from_json(Page, ti.pushed[PAGE_KEY])
    assert (page.state, page.kept, page.live) == (state, True, False)


def test_a_page_that_cannot_be_kept_fails_no_task():
    """It is for people; the result is what counts."""

    class Broken(FakeBackend):
        asked = 0

        async def status(self, name):
            record = self.record(name)
            if record.released:
                self.asked += 1
                if self.asked > 1:
                    raise OSError(5, "the disk is gone")
            return await super().status(name)

    ti = FakeTask()
    summary = operator(Broken(verdict=SUCCESS)).execute(context(ti))

    assert summary["phase"] == "Succeeded"
    assert PAGE_KEY not in ti.pushed


def test_without_xcom_nothing_is_kept():
    """`do_xcom_push=False` asks for that."""
    ti = FakeTask()
    operator(FakeBackend(verdict=SUCCESS), do_xcom_push=False).execute(context(ti))

    assert PAGE_KEY not in ti.pushed
