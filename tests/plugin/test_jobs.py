"""Looking at jobs from the API server: what is found, what is gone, and whose it is."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from pathlib import Path
from typing import ClassVar

import pytest

from rallypoint.backends.contract import BackendError, LogLine, Stored, Tail
from rallypoint.plugin import jobs
from rallypoint.plugin.jobs import FRESH, KEPT_OPEN, MOST_BACKENDS, Looker
from rallypoint.plugin.live_access import LiveAccess, NotLiveError
from rallypoint.plugin.task import TaskKey, TaskSeen
from rallypoint.report.model import State
from rallypoint.report.page.published import LIMIT, published_page
from rallypoint.report.page.values import Page
from rallypoint.wire import codec
from rallypoint.wire.env import MASKED
from tests.backends import fake
from tests.cli.samples import PLAN
from tests.plugin import scenes
from tests.waiting import eventually_async

KEY = TaskKey(dag_id="d", run_id="r", task_id="t")
JOB = "nightly-llm-3f9a2c1b"

#: The API server's own jobs, and no connection.
HERE = LiveAccess(home=Path("/home/airflow/.rallypoint"))


class Shelf(fake.FakeBackend):
    """A backend with what is put on it; counts how often it was asked."""

    def __init__(self, *found: scenes.Scene) -> None:
        super().__init__(fake.World())
        self.found = {record.name: (record, status) for record, status in found}
        self.asked = self.closed = 0
        self.broken: Exception | None = None
        self.silent = False

    async def load(self, name):
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.broken is not None:
            raise self.broken
        if name not in self.found:
            return None
        return Stored(record=self.found[name][0], plan=PLAN, version="1")

    async def written(self, name):
        return self.found[name][1]

    async def status(self, name):
        return self.found[name][1]

    async def close(self):
        self.closed += 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def task(*, owner: str = scenes.OWNER, **more) -> TaskSeen:
    return TaskSeen(key=KEY, tries={owner: 1}, handle={"name": JOB, "backend": "local", "owner": owner}, **more)


async def test_a_job_is_found_by_what_its_task_noted():
    """The name and the place are all it takes."""
    page = await Looker(lambda place: Shelf(scenes.running()), access=HERE).look(task())

    assert (page.state, page.job, page.place) == (State.RUNNING, JOB, "local")


async def test_a_job_that_another_task_has_adopted_is_not_shown():
    """An earlier attempt of it was this task's; what it does now is the other's."""
    record, status = scenes.running()
    shelf = Shelf((dataclasses.replace(record, owner="another task"), status))
    page = await Looker(lambda place: shelf, access=HERE).look(task())

    assert record.attempts[0].owner == scenes.OWNER
    assert (page.state, page.title) == (State.NO_DATA, f"Job {JOB} no longer exists")


async def test_a_job_that_may_not_be_opened_is_shown_as_published():
    """With the reason, and without anything being opened; a page of the end needs no reason."""
    tries = {scenes.OWNER: 1}
    live = await published_page(Shelf(scenes.running()), JOB, tries=tries, place="kubernetes", live=True)
    ended = await published_page(Shelf(scenes.failed()), JOB, tries=tries, place="kubernetes")
    opened = []

    def opens(place):
        opened.append(place)
        return Shelf()

    looker = Looker(opens, access=HERE)

    def elsewhere(kept):
        note = {"name": JOB, "backend": "kubernetes", "conn_id": "prod"}
        return TaskSeen(key=KEY, tries=tries, handle=note, kept=kept)

    page = await looker.look(elsewhere(live))
    assert (page.state, page.live, page.kept) == (State.RUNNING, True, False)
    assert "'prod' is not in [rallypoint] ui_connections" in page.notice
    page = await looker.look(elsewhere(ended))
    assert (page.state, page.live, page.kept, page.notice) == (State.FAILED, False, True, "")
    page = await looker.look(elsewhere(None))
    assert (page.state, page.live) == (State.NO_DATA, True)
    assert "ui_connections" in page.advice
    with pytest.raises(NotLiveError):
        await looker.tail(elsewhere(live), 0, lines=1)
    assert opened == []


async def test_a_published_page_of_a_job_that_is_gone_is_not_live():
    """Its task was killed before it could publish the end."""
    live = await published_page(Shelf(scenes.running()), JOB, tries={}, place="local", live=True)
    page = await Looker(lambda place: Shelf(), access=HERE).look(task(kept=live))

    assert (page.live, page.kept, page.coming) == (False, True, ())


async def test_many_notes_keep_few_backends_open():
    """A task may note any namespace; each would be a client of its own in the API server."""
    shelves = []

    def opened(place):
        shelves.append(Shelf(scenes.running()))
        return shelves[-1]

    clock = Clock()
    access = LiveAccess(home=HERE.home, connections=frozenset({"prod"}))
    looker = Looker(opened, access=access, clock=clock, linger=0.0)
    for number in range(3 * MOST_BACKENDS):
        note = {"name": JOB, "backend": "kubernetes", "conn_id": "prod", "namespace": f"n{number}"}
        clock.now += 0.1
        await looker.look(TaskSeen(key=KEY, tries={scenes.OWNER: 1}, handle=note))

    await eventually_async(lambda: sum(shelf.closed for shelf in shelves) == 2 * MOST_BACKENDS)
    await looker.close()
    assert all(shelf.closed == 1 for shelf in shelves)


async def test_a_task_without_a_job_says_so():
    """Most tasks have none."""
    page = await Looker(lambda place: Shelf(), access=HERE).look(TaskSeen(key=KEY, tries={"x": 1}))

    assert (page.state, page.title) == (State.NO_DATA, "No training job here")


async def test_the_job_of_another_task_is_not_shown():
    """A task may note any name it likes: only a job that one of its tries owns is its own."""
    looker = Looker(lambda place: Shelf(scenes.running()), access=HERE)
    stranger = task(owner="somebody else")

    assert (await looker.look(stranger)).state is State.NO_DATA
    assert await looker.tail(stranger, 0, lines=9) == ()


async def test_a_job_that_is_gone_is_told_as_the_task_kept_it():
    """Deleted, it is still to be seen how it went."""
    kept = await published_page(Shelf(scenes.failed()), JOB, tries={scenes.OWNER: 1}, place="local")
    page = await Looker(lambda place: Shelf(), access=HERE).look(task(kept=kept))

    assert (page.state, page.kept) == (State.FAILED, True)
    assert "FloatingPointError" in page.title


@pytest.mark.parametrize("kept", [None, "a text", {"version": 99}, 7], ids=["nothing", "a text", "another form", "a number"])
async def test_what_is_no_page_is_not_shown(kept):
    """An XCom is whatever somebody pushed."""
    page = await Looker(lambda place: Shelf(), access=HERE).look(task(kept=kept))

    assert page.state is State.NO_DATA
    assert JOB in page.title


async def test_a_backend_that_refuses_is_told_with_its_words():
    """What is wrong with the way there says nothing against the training."""
    shelf = Shelf()
    shelf.broken = BackendError("the cluster refuses the token")
    page = await Looker(lambda place: shelf, access=HERE).look(task())

    assert page.state is State.NO_DATA
    assert "the cluster refuses the token" in page.advice
    assert page.live


async def test_a_backend_that_is_silent_keeps_nobody_waiting():
    """The page must answer, whatever a cluster does."""
    shelf = Shelf()
    shelf.silent = True
    page = await Looker(lambda place: shelf, access=HERE, patience=0.05).look(task())

    assert "Cannot read job" in page.title


async def test_a_job_that_cannot_be_read_is_not_asked_for_by_each_viewer():
    """The longer its server takes for an error, the longer it is not asked again; then it may work."""
    clock = Clock()

    class Slow(Shelf):
        async def load(self, name):
            clock.now += 3.0
            return await super().load(name)

    shelf = Slow(scenes.running())
    shelf.broken = BackendError("the response has more than 1048576 JSON values")
    looker = Looker(lambda place: shelf, access=HERE, clock=clock)
    pages = [await looker.look(task()) for _ in range(20)]
    clock.now += 29.0
    pages.append(await looker.look(task()))

    assert shelf.asked == 1
    assert all("more than 1048576 JSON values" in page.advice for page in pages)

    clock.now += 2.0
    shelf.broken = None
    assert (await looker.look(task())).state is not State.NO_DATA
    assert shelf.asked == 2


async def test_a_hundred_viewers_are_one_look():
    """However many browsers are open, a job is read once a second at the most."""
    shelf, clock = Shelf(scenes.running()), Clock()
    looker = Looker(lambda place: shelf, access=HERE, clock=clock)

    await asyncio.gather(*(looker.look(task()) for _ in range(100)))
    assert shelf.asked == 1

    clock.now += 2 * FRESH
    await looker.look(task())
    assert shelf.asked == 2


async def test_a_slow_page_is_made_once_for_all_viewers_and_none_waits_for_long(monkeypatch):
    """A browser that leaves does not stop the thread that makes the page; its next request must not start another one."""
    made, go_on = [], threading.Event()

    def slow_page(place, tries, seen):
        made.append(seen)
        assert go_on.wait(20.0)
        return page_of_job(place, tries, seen)

    page_of_job = jobs._page
    monkeypatch.setattr(jobs, "_page", slow_page)
    looker = Looker(lambda place: Shelf(scenes.running()), access=HERE, patience=20.0, clock=iter(range(1000)).__next__)
    first = asyncio.create_task(looker.look(task()))
    await eventually_async(lambda: made, why="the page is being made")
    first.cancel()
    looker._patience = 0.3
    pages = [page for _ in range(3) for page in await asyncio.gather(*(looker.look(task()) for _ in range(10)))]
    go_on.set()

    assert len(made) == 1
    assert len(pages) == 30
    assert all("no page of its record within 0.3 s" in codec.dumps(page) for page in pages)


async def test_a_page_is_made_once_for_each_look_at_a_job(monkeypatch):
    """Viewers of the same second share it; the next second has its own."""
    made, now = [], [0.0]
    page_of_job = jobs._page

    def counted(*args):
        made.append(args)
        return page_of_job(*args)

    monkeypatch.setattr(jobs, "_page", counted)
    looker = Looker(lambda place: Shelf(scenes.running()), access=HERE, clock=lambda: now[0])

    first = await asyncio.gather(*(looker.look(task()) for _ in range(20)))
    assert len(made) == 1
    assert all(page == first[0] for page in first)

    now[0] += FRESH
    await looker.look(task())
    assert len(made) == 2


async def test_a_backend_is_kept_open_for_a_while():
    """It is opened anew now and then, because its connection may have changed, and all are closed at the end."""
    shelves, clock = [Shelf(scenes.running()) for _ in range(2)], Clock()
    waiting = iter(shelves)
    looker = Looker(lambda place: next(waiting), access=HERE, clock=clock, linger=0.0)

    await looker.look(task())
    clock.now += KEPT_OPEN / 2
    await looker.look(task())
    clock.now += KEPT_OPEN
    await looker.look(task())
    await looker.close()

    assert shelves[0].asked == 2
    assert shelves[1].asked == 1
    assert shelves[1].closed == 1


async def test_a_page_is_kept_without_the_log():
    """What a task keeps is plain JSON of our own words."""
    kept = await published_page(Shelf(scenes.failed()), JOB, tries={}, place="local")

    assert kept is not None
    assert "Traceback" not in codec.dumps(kept)
    assert await published_page(Shelf(), JOB, tries={}, place="local") is None


async def test_a_page_that_is_kept_is_small_whatever_happened():
    """A large world, a hundred incidents and long errors: the newest is what stays."""
    record, status = scenes.failed()
    assert status is not None
    last = status.incidents[-1]
    assert last.culprit is not None
    culprit = dataclasses.replace(last.culprit, error="x" * 300)
    many = tuple(
        dataclasses.replace(
            last, id=dataclasses.replace(last.id, round=r), reason="y" * 300, culprit=culprit, detected_at=scenes.START + r
        )
        for r in range(100)
    )
    world = tuple(dataclasses.replace(scenes.member(0, place), node=place) for place in range(256))
    shelf = Shelf((dataclasses.replace(record, incidents=many), dataclasses.replace(status, incidents=many, world=world)))
    kept = await published_page(shelf, JOB, tries={}, place="local")

    assert kept is not None
    assert len(json.dumps(kept)) <= LIMIT
    assert codec.from_json(Page, kept).faults[-1].round == 99


async def test_the_secrets_of_a_role_are_masked_and_looked_for_in_a_thread():
    """A script can write a long note of them into its plan; the event loop serves all of Airflow's users."""
    threads = set()

    class Noted(dict):
        def get(self, key, default=None):
            threads.add(threading.current_thread())
            return super().get(key, default)

    class Roles(Shelf):
        async def load(self, name):
            env = Noted({"PW": "hunter2-secret", MASKED: '[["PW", 0, 14]]'})
            stored = await super().load(name.removesuffix("-a"))
            roles = ({"name": "a", "elastic": True, "total": 1, "plan": {"env": env}},)
            if stored is not None and name != stored.record.name:
                role_record = dataclasses.replace(stored.record, owner=f"{stored.record.name}/1.0.1")
                stored = dataclasses.replace(stored, record=role_record)
            return stored and dataclasses.replace(stored, plan=dataclasses.replace(PLAN, env={}, roles=roles))

        async def tail(self, name, *, lines, rank=None):
            return Tail(lines=(LogLine(rank=0, stream="out", text="got hunter2-secret", cursor=""),), cursor="")

    (line,) = await Looker(lambda place: Roles(scenes.running()), access=HERE).tail(task(), 0, lines=9, role="a")

    assert line.text == "got ***"
    assert threads
    assert threading.main_thread() not in threads


async def test_few_requests_read_log_lines_at_a_time():
    """Fails if many browsers fill the memory of Airflow's API server, each with the log of a job."""
    running, most, go_on = 0, 0, asyncio.Event()

    class Counted(Shelf):
        async def tail(self, name, *, lines, rank=None):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await go_on.wait()
            running -= 1
            return Tail(lines=(), cursor="")

    looker = Looker(lambda place: Counted(scenes.running()), access=HERE, patience=60.0)
    requests = asyncio.gather(*(looker.tail(task(), 0, lines=9) for _ in range(20)))
    await eventually_async(lambda: running == 4, why="four requests read lines, and the others wait")
    go_on.set()
    await requests

    assert (running, most) == (0, 4)


async def test_a_secret_of_an_attempt_that_starts_while_its_log_is_read_is_masked():
    """The plan of the new attempt knows it."""
    now = [0.0]

    class Restarting(Shelf):
        env: ClassVar[dict[str, str]] = {"PW": "first-secret", MASKED: '[["PW", 0, 12]]'}

        async def load(self, name):
            stored = await super().load(name)
            return stored and dataclasses.replace(stored, plan=dataclasses.replace(PLAN, env=self.env))

        async def tail(self, name, *, lines, rank=None):
            type(self).env = {"PW": "other-secret", MASKED: '[["PW", 0, 12]]'}
            now[0] += FRESH
            return Tail(lines=(LogLine(rank=0, stream="out", text="got other-secret", cursor=""),), cursor="")

    looker = Looker(lambda place: Restarting(scenes.running()), access=HERE, clock=lambda: now[0])

    assert [line.text for line in await looker.tail(task(), 0, lines=9)] == ["got ***"]
