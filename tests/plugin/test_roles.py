"""The tab of a job with several roles, as the API server reads it."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi")

from rallypoint.backends.contract import BackendError
from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.task import TaskSeen
from tests.plugin import role_scenes, scenes
from tests.plugin.test_jobs import HERE, KEY
from tests.report.test_roles import job, trainer


@pytest.fixture
def looked() -> tuple[Looker, TaskSeen]:
    """A looker on the job of a task."""
    shelf = role_scenes.RolesShelf(job(), trainer())
    handle = {"name": shelf.name, "backend": "local", "owner": scenes.OWNER}
    return Looker(lambda place: shelf, access=HERE), TaskSeen(key=KEY, tries={scenes.OWNER: 1}, handle=handle)


def test_the_page_has_all_roles(looked):
    """Each from its own record and status."""
    looker, task = looked
    page = asyncio.run(looker.look(task))
    assert [(part.name, part.state.value) for part in page.roles] == [
        ("trainer", "recovered"),
        ("rollout", "running"),
        ("judge", "running"),
    ]


@pytest.mark.parametrize(
    ("role", "line"),
    [("trainer", "nightly-rl-3f9a2c1b-trainer 1"), ("rollout", "nightly-rl-3f9a2c1b rollout 1")],
)
def test_the_last_lines_are_those_of_the_role(looked, role, line):
    """Of an elastic role its own job has them."""
    looker, task = looked
    (found,) = asyncio.run(looker.tail(task, 1, lines=5, role=role))
    assert found.text == line


def test_a_role_that_the_job_does_not_have_has_no_lines(looked):
    """The error names it."""
    looker, task = looked
    with pytest.raises(BackendError, match="has no role 'x'"):
        asyncio.run(looker.tail(task, 1, lines=5, role="x"))
