"""A ledger that another program of the Ray cluster has announced: it must not lead a supervisor to files of its own machine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rallypoint.backends.contract import BackendError, Stored
from rallypoint.backends.ray import calls
from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.ray.line import LINE, PATH
from rallypoint.backends.ray.placement import FILE, Placement
from rallypoint.backends.requests import request_deletion
from rallypoint.backends.supervise import supervise
from rallypoint.job import load_job
from rallypoint.provider.trigger import ElasticTrainingTrigger
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.paths import HEALTH_PATH
from rallypoint.wire.role_plans import role_plans
from rallypoint.wire.status import JobState, JobStatus
from tests.provider.triggers import CLAIM
from tests.ray.proving import prove
from tests.waiting import eventually_async

KEY = "k" * 43

ROLES = {
    "trainer": {"entrypoint": "pkg.train:run", "nodes": 1, "nproc_per_node": 1},
    "actor": {"launch": "simple", "entrypoint": "pkg.a:b", "total": 1},
}
JOB = {"name": "digits", "roles": ROLES}
TRAINER = {"name": "digits-trainer", "entrypoint": "train.py", "nodes": 1}


class Forged:
    """A dashboard and the ledger that it names: `digits` has the elastic role `trainer`, whose job the ledger returns."""

    def __init__(self, site: RayBackend) -> None:
        drawn = site.plan(load_job(JOB, based=False))
        record = JobRecord.new(name="digits", uid="0123456789abcdef", digest=drawn.plan.digest, owner="try-1", now=time.time())
        self.stored: dict[str, Any] = calls.stored_to(Stored(record=record, plan=drawn.plan, version="1"))
        (trainer,) = (role.read() for role in role_plans(drawn.plan) if role.elastic)
        self.placement = codec.loads(Placement, drawn.attached[FILE])
        self.blueprint: dict[str, Any] = {
            "environment": {},
            "document": TRAINER,
            "plan": codec.to_json(trainer),
            "placement": drawn.attached[FILE],
        }
        self.status: Any = None
        self.packages: list[bytes] = []
        self.submitted: list[dict[str, Any]] = []
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == HEALTH_PATH:
            return prove(request, KEY)
        if path.startswith("/api/packages/"):
            if request.method == "PUT":
                self.packages.append(await request.read())
            return web.Response(status=200 if request.method == "PUT" else 404, text="{}")
        if path == "/api/jobs/":
            mark = {"rallypoint": "rallypoint"}
            return web.json_response([{"submission_id": "evil", "metadata": mark, "status": "SUCCEEDED", "start_time": 1}])
        if path.endswith("/logs"):
            line = json.dumps({"url": f"http://{request.host}", "key": KEY})
            return web.json_response({"logs": f"{LINE}{line}\n"})
        return web.json_response({"value": self._value(path.removeprefix(PATH), await request.json())})

    def _value(self, method: str, given: dict[str, Any]) -> Any:
        self.asked.append(method)
        if method == "load":
            return self.stored if given["name"] == "digits" else None
        if method == "save":
            self.stored = {**self.stored, "record": given["record"], "version": str(int(self.stored["version"]) + 1)}
            return {"plan": self.stored["plan"], "version": self.stored["version"]}
        if method == "submit":
            self.submitted.append(given)
        return {"beat": "x", "unit_observe": [], "unit_blueprint": self.blueprint, "status": self.status}.get(method)


@pytest.fixture
async def forged() -> AsyncIterator[tuple[Forged, str]]:
    """Give the program and its address."""
    application = web.Application()
    runner = web.AppRunner(application)
    program = Forged(RayBackend(Access(address="http://127.0.0.1:1")))
    application.router.add_route("*", "/{path:.*}", program.handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield program, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


class Trigger(ElasticTrainingTrigger):
    """The trigger of a task, whose connection names the dashboard."""

    access = Access(address="http://127.0.0.1:1")

    def open_backend(self) -> RayBackend:
        return RayBackend(self.access)


async def supervised(access: Access, until: Callable[[], Any]) -> None:
    """Run the trigger of the task until a condition holds."""
    trigger = Trigger(**dataclasses.asdict(dataclasses.replace(CLAIM, backend="ray", on_kill_action="none", get_logs=False)))
    trigger.access = access

    async def run() -> None:
        async for _ in trigger.run():
            return

    running = asyncio.create_task(run())
    try:
        await eventually_async(until)
    finally:
        running.cancel()
        await asyncio.wait([running])


def home_of(folder: Path) -> Path:
    """Return a folder of the triggerer with a secret."""
    folder.mkdir()
    (folder / "airflow.cfg").write_text("fernet_key = TOPSECRET\n")
    return folder


async def test_a_ledger_gets_no_folder_of_the_triggerer(
    forged: tuple[Forged, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It named one as the working_dir of a role, and the trigger uploaded it to where each client of the cluster reads it."""
    program, url = forged
    folder = home_of(tmp_path / "triggerer")
    stolen = dataclasses.replace(program.placement, runtime_env={"working_dir": str(folder)})
    program.blueprint["placement"] = codec.dumps(stolen)
    caplog.set_level(logging.WARNING, "rallypoint")

    await supervised(Access(address=url), lambda: "expected the URI of an uploaded package" in caplog.text or program.packages)

    assert program.packages == []
    assert program.submitted == []
    assert f"role trainer: the ledger returned the working_dir '{folder}'" in caplog.text


async def test_a_ledger_gets_no_job_file_of_the_triggerer(
    forged: tuple[Forged, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A text in the place of the document was the path of a job file, which came back with the values of its `env`."""
    program, url = forged
    theirs = tmp_path / "job.yaml"
    theirs.write_text("name: digits-trainer\nentrypoint: train.py\nenv: {KEY: TOPSECRET}\n")
    program.blueprint["document"] = str(theirs)
    caplog.set_level(logging.WARNING, "rallypoint")

    await supervised(Access(address=url), lambda: "cannot read the job document" in caplog.text or program.submitted)

    assert program.submitted == []


async def test_the_folder_of_the_connection_is_uploaded_and_no_other(forged: tuple[Forged, str], tmp_path: Path) -> None:
    """A submission packs what the connection names, whatever the blueprint says by then."""
    program, url = forged
    mine, theirs = tmp_path / "mine", home_of(tmp_path / "theirs")
    mine.mkdir()
    (mine / "train.py").write_text("print('hello')\n")
    backend = RayBackend(Access(address=url, runtime_env=json.dumps({"working_dir": str(mine)})))
    drawn = backend.plan(load_job(TRAINER, based=False))
    other = dataclasses.replace(codec.loads(Placement, drawn.attached[FILE]), runtime_env={"working_dir": str(theirs)})
    try:
        with pytest.raises(Exception, match="was deleted right after it was changed"):
            await backend.submit(dataclasses.replace(drawn, attached={FILE: codec.dumps(other)}), owner="try-1")
    finally:
        await backend.close()

    (package,) = program.packages
    assert b"train.py" in package
    assert b"airflow.cfg" not in package
    (given,) = program.submitted
    assert json.loads(given["placement"])["runtime_env"]["working_dir"].startswith("gcs://_ray_pkg_")


async def test_a_role_is_submitted_with_the_package_of_its_job(forged: tuple[Forged, str]) -> None:
    """The URI that the ledger has is passed on as it is."""
    program, url = forged
    uploaded = dataclasses.replace(program.placement, runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"})
    program.blueprint["placement"] = codec.dumps(uploaded)

    await supervised(Access(address=url), lambda: program.submitted)

    given = program.submitted[0]
    assert json.loads(given["placement"])["runtime_env"] == {"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"}
    assert (given["document"]["name"], given["parent"]) == ("digits-trainer", "digits")
    assert program.packages == []


@pytest.mark.parametrize("kind", ["record", "plan"])
async def test_a_ledger_returns_the_job_that_was_asked_for(forged: tuple[Forged, str], kind: str) -> None:
    """The tab and the commands would show another job, and a supervisor would change it."""
    program, url = forged
    program.stored = {**program.stored, kind: {**program.stored[kind], "name": "victim"}}
    backend = RayBackend(Access(address=url))
    told = f"the {kind} belongs to job 'victim', but this is the place of job 'digits'"
    try:
        for call in (backend.load("digits"), request_deletion(backend, "digits")):
            with pytest.raises(BackendError, match=told):
                await call
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(supervise(backend, "digits", holder="test"), 0.5)
    finally:
        await backend.close()
    assert "save" not in program.asked


async def test_a_ledger_returns_the_status_that_was_asked_for(forged: tuple[Forged, str]) -> None:
    """It has the name of its job."""
    program, url = forged
    status = JobStatus(job="victim", uid="0123456789abcdef", fence=Fence(attempt=1), state=JobState.RUNNING)
    program.status = codec.to_json(status)
    backend = RayBackend(Access(address=url))
    try:
        with pytest.raises(BackendError, match="the status belongs to job 'victim', but this is the place of job 'digits'"):
            await backend.status("digits")
    finally:
        await backend.close()


@pytest.mark.parametrize("part", ["plan", "document"])
async def test_a_role_is_submitted_under_its_own_name(
    forged: tuple[Forged, str], caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """A ledger named another job in its place."""
    program, url = forged
    program.blueprint[part] = {**program.blueprint[part], "name": "victim"}
    caplog.set_level(logging.WARNING, "rallypoint")

    await supervised(Access(address=url), lambda: "returned job 'victim'" in caplog.text or program.submitted)

    assert program.submitted == []
    assert "role trainer: its job must be digits-trainer, but the backend returned job 'victim'" in caplog.text
