"""What is told of a job with several roles: its page, its summary, its metrics."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rallypoint.operators.reporting import count
from rallypoint.report.incidents import done, judgement, list_incidents
from rallypoint.report.model import Mood, State
from rallypoint.report.page.published import LIMIT, published_page
from rallypoint.report.page.roles import roles_page
from rallypoint.report.page.values import Page
from rallypoint.report.roles import RoleSeen, role_stories
from rallypoint.report.story import story_of
from rallypoint.report.summary import summarize
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.incident import Cause
from tests.plugin import role_scenes, scenes
from tests.plugin.scenes import OWNER, START

AT = START + 700


def job(phase: Phase = Phase.RUNNING, *, healed: float | None = AT + 0.2, done: tuple[int, ...] = ()) -> JobRecord:
    return role_scenes.conducted(scenes.begun(phase, until=1180.0), at=AT, healed=healed, done=done)


def trainer(scene=scenes.recovered) -> RoleSeen:
    record, status = scene()
    return RoleSeen(name="trainer", record=record, plan=role_scenes.plan(), status=status)


def page_of(record: JobRecord, *jobs: RoleSeen) -> Page:
    return roles_page(record, role_scenes.plan(), jobs, now=START + 1180, site=scenes.SITE, tries={OWNER: 2})


def parts(record: JobRecord, *jobs: RoleSeen) -> dict[str, tuple[State, Mood, str]]:
    return {part.name: (part.state, part.mood, part.title) for part in page_of(record, *jobs).roles}


def test_each_role_has_a_part_of_the_page():
    """An elastic role has all that a job of one role has, a simple one its instances."""
    page = page_of(job(done=(0,)), trainer())

    own, rollout, judge = page.roles
    assert (page.title, page.state) == ("Running 3 roles, recovered from 3 faults", State.RECOVERED)
    assert (own.launch, own.driver, len(own.faults), len(own.nodes), bool(own.curves)) == ("elastic", True, 2, 4, True)
    assert (rollout.launch, rollout.driver, len(rollout.instances)) == ("simple", False, 6)
    assert [(one.life, one.restarts) for one in rollout.instances[2:4]] == [(1, 1), (2, 1)]
    assert (judge.title, judge.state) == ("Succeeded", State.SUCCEEDED)


def test_a_record_with_too_few_numbers_is_shown():
    """A script can write to the record of its job; numbers that are missing count as 0."""
    record = job()
    assert record.conductor is not None
    roles = tuple(dataclasses.replace(role, incarnations=(), restarts=()) for role in record.conductor.roles)
    short = dataclasses.replace(record.conductor, roles=roles)

    page = page_of(dataclasses.replace(record, conductor=short), trainer())

    assert [(one.life, one.restarts) for one in page.roles[1].instances] == [(0, 0)] * 6


def test_the_incidents_of_the_job_are_those_of_instances():
    """In the words of roles."""
    (fault,) = page_of(job(), trainer()).faults
    assert (fault.cause, fault.rung, fault.recovered) == (
        "Instance failed",
        "restart instance",
        "all instances run after 0.20 s",
    )


@pytest.mark.parametrize(
    ("cause", "rule", "told"),
    [
        pytest.param(
            Cause.PROCESS,
            "instance",
            (
                "an instance failed -> restart-instance; charged to the restarts of the instance",
                "restart-instance (the instance was started again), all instances run after 0.20 s",
            ),
            id="an instance",
        ),
        pytest.param(
            Cause.NODE,
            "role",
            (
                "an instance was lost -> restart-role; charged to the restarts of the role",
                "restart-role (all instances of the role were started again), all instances run after 0.20 s",
            ),
            id="a role",
        ),
        pytest.param(
            Cause.PROCESS,
            "job",
            (
                "an instance failed -> reset; charged to the reset budget",
                "reset (the job was reset: all roles were started again), all instances run after 0.20 s",
            ),
            id="the job",
        ),
    ],
)
def test_the_answer_to_an_instance_is_told_in_the_words_of_roles(cause, rule, told):
    """By `explain`, by `status` and in XCom as in the tab; no worker and no node is named."""
    (incident,) = job().incidents
    changed = dataclasses.replace(incident, cause=cause, rule=rule)

    assert (judgement(changed), done(changed)) == told
    (listed,) = list_incidents(dataclasses.replace(job(), incidents=(changed,)), None)
    assert listed.action == told[1].partition(" ")[0]


def test_logs_are_those_of_each_role():
    """What failed comes first; the command names the role."""
    logs = page_of(job(), trainer()).logs
    assert [(log.role, log.rank) for log in logs] == [
        ("trainer", 11),
        ("trainer", 0),
        ("rollout", 3),
        ("rollout", 0),
        ("judge", 0),
    ]
    assert logs[2].command.endswith("--namespace training --role rollout --rank 3")


@pytest.mark.parametrize(
    ("record", "title"),
    [
        (job(healed=None), "Recovering: rollout 3 was killed by SIGKILL"),
        (job(Phase.RESETTING), "Recovering: rollout 3 was killed by SIGKILL"),
        (dataclasses.replace(job(), conditions=()), "Starting"),
        (dataclasses.replace(job(), incidents=()), "Running 3 roles"),
    ],
)
def test_the_headline_is_that_of_the_whole_job(record, title):
    """While it runs it has no coordinator that could say so."""
    assert page_of(record).title == title


def test_a_role_that_recovers_is_the_news_of_its_job():
    """Its part says the same."""
    record, status = scenes.recovered()
    assert status is not None
    open_ = (dataclasses.replace(status.incidents[0], healed_at=None),)
    own = dataclasses.replace(
        trainer(),
        record=dataclasses.replace(record, incidents=open_),
        status=dataclasses.replace(status, incidents=open_),
    )
    page = page_of(job(), own)
    assert (page.state, page.title.partition(":")[0]) == (State.RECOVERING, "Role trainer")


@pytest.mark.parametrize(
    ("phase", "title"),
    [(Phase.SUCCEEDED, "Ended"), (Phase.RESETTING, "Being stopped"), (Phase.TERMINATING, "Being deleted")],
)
def test_a_role_is_stopped_with_its_job(phase, title):
    """Its own job is only suspended then, which nobody should resume."""
    told = parts(job(phase), trainer())
    assert told["trainer"] == (State.WAITING, Mood.QUIET, title)
    assert told["rollout"] == (State.WAITING, Mood.QUIET, title)


def test_a_role_that_has_not_begun_starts():
    """Before its first record."""
    assert parts(job())["trainer"][2] == "Starting"


def summary() -> dict:
    record, jobs = job(), [trainer()]
    story = story_of(record, None, now=START + 1180)
    return summarize(story, role_stories(record, role_scenes.plan(), jobs, now=START + 1180))


def test_the_summary_has_the_figures_of_each_role():
    """Plain JSON; the job's own figures count all roles."""
    told = json.loads(json.dumps(summary()))

    assert (told["faults"], told["steps_lost"]) == (3, 74)
    assert (told["roles"]["trainer"]["step"], told["roles"]["trainer"]["world_size"]) == (3009, 32)
    assert [row["cause"] for row in told["roles"]["trainer"]["incidents"]] == ["process", "node"]
    assert told["roles"]["rollout"] == {
        "launch": "simple",
        "driver": False,
        "restarts": 1,
        "resets": 0,
        "instances": 6,
    }


class Stats:
    """Airflow's metrics, as a list."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object, dict]] = []

    def incr(self, name, number=1, *, tags):
        self.told.append((name, number, tags))

    def gauge(self, name, value, *, tags):
        self.told.append((name, value, tags))

    timing = gauge


def test_metrics_have_the_tag_role():
    """Each figure once; the end of the job is that of no role."""
    stats = Stats()
    count(stats, summary(), end="succeeded", dag_id="d", task_id="t")

    tags = {"dag_id": "d", "task_id": "t"}
    assert ("rallypoint.job.succeeded", 1, tags) in stats.told
    assert ("rallypoint.job.final_step", 3009, {**tags, "role": "trainer"}) in stats.told
    assert ("rallypoint.job.restarts", 1, {**tags, "role": "rollout"}) in stats.told
    names = [(name, tags.get("role")) for name, _, tags in stats.told]
    assert len(names) == len(set(names))


async def test_a_task_publishes_the_page_of_all_roles_within_its_limit():
    """Without nodes and curves where they are too much."""
    shelf = role_scenes.RolesShelf(job(), trainer())
    told = await published_page(shelf, shelf.name, tries={OWNER: 2}, place="kubernetes", live=True)

    assert told is not None
    assert [role["name"] for role in told["roles"]] == ["trainer", "rollout", "judge"]
    assert len(json.dumps(told)) < LIMIT
