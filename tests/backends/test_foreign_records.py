"""A record, a plan or a status that names another job than the one in whose place it is: a script can write its job's files."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.contract import BackendError, ConflictError
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.requests import request_deletion
from rallypoint.backends.supervise import supervise
from rallypoint.backends.worker_commands import request_wish
from rallypoint.cli.main import main
from rallypoint.job import load_job
from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.live_access import LiveAccess
from rallypoint.plugin.task import TaskKey, TaskSeen
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire import codec
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.fence import Fence
from rallypoint.wire.line import Verb
from rallypoint.wire.role_plans import role_plan
from rallypoint.wire.status import JobState, JobStatus

SECRET = "the output of the victim"

ROLES = {"trainer": {"entrypoint": "train.py", "nodes": 1}, "actor": {"launch": "simple", "entrypoint": "act.py", "total": 1}}


def submitted(home: Path, name: str, owner: str, **fields: Any) -> Path:
    """Submit a job; return its folder."""
    script = home.parent / "train.py"
    script.write_text("print('never')\n")
    (home.parent / "act.py").write_text("print('never')\n")
    job = load_job({"name": name, **(fields or {"entrypoint": str(script), "nodes": 1})}, base=home.parent)
    backend = LocalBackend(home)
    asyncio.run(backend.submit(backend.plan(job), owner=owner))
    return home / "jobs" / name


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a file as the script of the job could."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.fixture
def mine(home: Path) -> Path:
    """The folder of the job `mine`, beside which there is a job `victim` of another task."""
    victim = submitted(home, "victim", "victim-ti")
    output = victim / "nodes/0/attempt-1.1/logs/round-1/rank-0.out"
    output.parent.mkdir(parents=True)
    output.write_text(f"{SECRET}\n")
    return submitted(home, "mine", "my-ti")


def of_victim(mine: Path) -> None:
    """Put the record of `victim` in the place of the record of `mine`, with the owner of `mine`."""
    record = json.loads((mine.parent / "victim/record.json").read_text())
    (mine / "record.json").write_text(json.dumps({**record, "owner": "my-ti"}))


def renamed(mine: Path) -> None:
    """Have the plan of `mine` name `victim`."""
    changed(mine / "plan.json", lambda plan: plan.update(name="victim"))


PLANTED = pytest.mark.parametrize(("plant", "kind"), [(of_victim, "record"), (renamed, "plan")])


@PLANTED
def test_no_command_takes_a_job_for_another(
    mine: Path, capsys: pytest.CaptureFixture[str], plant: Callable[[Path], None], kind: str
) -> None:
    """Each showed the other job, and the deletion never ended; it leaves the other job as it is."""
    victim = (mine.parent / "victim/record.json").read_text()
    plant(mine)

    for command in ("status", "logs", "pause", "delete"):
        assert main([command, "mine"]) != 0
        printed = capsys.readouterr()
        assert f"the {kind} belongs to job 'victim', but this is the place of job 'mine'" in printed.err
        assert SECRET not in printed.out + printed.err
    main(["status"])
    assert "victim" in capsys.readouterr().out
    assert (mine.parent / "victim/record.json").read_text() == victim


@PLANTED
async def test_the_tab_shows_no_job_of_another_task(mine: Path, home: Path, plant: Callable[[Path], None], kind: str) -> None:
    """The owner in the record is that of the viewer's task."""
    plant(mine)
    looker = Looker(lambda _: LocalBackend(home, own_folders=True), access=LiveAccess(home=home))
    key = TaskKey(dag_id="d", run_id="r", task_id="t")
    task = TaskSeen(key=key, tries={"my-ti": 1}, handle={"name": "mine", "backend": "local"})
    try:
        page = await looker.look(task)
        with pytest.raises(RallypointError, match="the place of job 'mine'"):
            await looker.tail(task, 0, lines=5)
    finally:
        await looker.close()

    assert page.job == "mine"
    assert f"the {kind} belongs to job 'victim'" in page.advice


async def test_a_supervisor_of_a_job_that_names_another_pauses(
    mine: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It took a hundred turns and wrote as many log lines each second."""
    of_victim(mine)

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(supervise(LocalBackend(home), "mine", holder="test"), 1.2)

    assert 1 <= caplog.text.count("but this is the place of job 'mine'") <= 3


def test_a_role_table_that_names_another_job_is_refused(home: Path) -> None:
    """An elastic role is submitted as a job of the name in its plan."""
    folder = submitted(home, "mine", "my-ti", roles=ROLES)
    assert asyncio.run(LocalBackend(home).load("mine")) is not None

    changed(folder / "plan.json", lambda plan: plan["roles"][0]["plan"].update(name="victim"))

    with pytest.raises(
        BackendError, match="plan of role 'trainer' belongs to job 'victim', but this is the place of job 'mine-trainer'"
    ):
        asyncio.run(LocalBackend(home).load("mine"))


def test_a_deletion_ends_where_a_role_names_another_job(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With an error: the record that names the processes of the role is lost."""
    folder = submitted(home, "mine", "my-ti", roles=ROLES)

    async def started() -> None:
        backend = LocalBackend(home)
        stored = await backend.load("mine")
        assert stored is not None
        units = backend.units("mine")
        drawn = await units.blueprint(stored.record, stored.plan, role_plan(stored.plan, "trainer"))
        await units.jobs.submit(drawn, owner="mine/1.0.1")

    asyncio.run(started())
    changed(folder / "jobs/mine-trainer/record.json", lambda record: record.update(name="victim"))

    assert main(["delete", "mine"]) != 0
    assert "the record belongs to job 'victim', but this is the place of job 'mine-trainer'" in capsys.readouterr().err


async def test_a_status_of_another_job_counts_as_none(mine: Path, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A supervisor goes on without it, as without any status that it cannot read."""
    backend = LocalBackend(home)
    stored = await backend.load("mine")
    assert stored is not None
    status = JobStatus(
        job="mine", uid=stored.record.uid, fence=Fence(attempt=1), state=JobState.RUNNING, updated_at=time.time()
    )
    (mine / "status.json").write_text(codec.dumps(status))
    assert await backend.status("mine") == status

    (mine / "status.json").write_text(codec.dumps(dataclasses.replace(status, job="victim")))

    assert await backend.status("mine") is None
    assert (await backend.observe(stored.record)).status is None
    assert "the status belongs to job 'victim', but this is the place of job 'mine'" in caplog.text


class Stuck(LocalBackend):
    """Every save is a conflict."""

    saves = 0

    async def save(self, record: JobRecord, *, version: str, blueprint: Any = None) -> Any:
        self.saves += 1
        raise ConflictError(f"job {record.name}: the record was changed by another process")


@pytest.mark.parametrize("asks", ["supervise", "delete", "pause"])
async def test_conflicts_in_a_row_pause_ever_longer(mine: Path, home: Path, asks: str) -> None:
    """Only the first is tried again at once."""
    backend = Stuck(home)
    if asks == "pause":
        changed(mine / "record.json", lambda record: record.update(phase=Phase.RUNNING.value))
    calls = {
        "supervise": lambda: supervise(backend, "mine", holder="test"),
        "delete": lambda: request_deletion(backend, "mine"),
        "pause": lambda: request_wish(backend, "mine", Verb.PAUSE),
    }

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(calls[asks](), 1.2)

    assert 2 <= backend.saves <= 4
