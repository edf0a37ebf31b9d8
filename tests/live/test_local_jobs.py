"""Whole jobs of the local backend with stand-ins for agents: killed supervisors, two of them, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading

import pytest

from rallypoint.backends.contract import JobNotFoundError
from rallypoint.backends.local import proc
from rallypoint.backends.local.detach import spawn_supervisor
from rallypoint.backends.requests import delete, request_deletion, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.status import Outcome
from tests.backends.crashing import Crashed, Crashing
from tests.backends.stage import LocalStage, verdict
from tests.leftovers import marked_with
from tests.live.local_nodes import cgroups
from tests.scale import sized
from tests.waiting import PATIENCE, eventually, eventually_async


def ends(*, failures=0):
    """Attempts fail as often as `failures` says, the next succeeds, and all that is there of it ends well by itself."""

    def behave(stage, record):
        if record.phase is Phase.RUNNING:
            stage.say(verdict(record, Outcome.FAILED if record.attempt <= failures else Outcome.SUCCEEDED))
        if record.phase is Phase.SUCCEEDED:
            for folder in stage.folder_of("digits").everyone():
                folder.path.joinpath(".end").write_text("0")
                folder.path.joinpath(".end").replace(folder.path / "end")

    return behave


@contextlib.contextmanager
def inside(stage, behave):
    """Let a job behave, whoever supervises it: `behave(stage, record)` is called with its record again and again."""
    over = threading.Event()

    def live():
        while not over.wait(0.02):
            with contextlib.suppress(FileNotFoundError):  # not submitted yet, or deleted
                behave(stage, JobRecord.from_json(stage.folder_of("digits").record.read_bytes()))

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def submit(stage, **fields):
    blueprint = stage.backend.plan(stage.job(**fields))
    return (await submit_or_adopt(stage.backend, blueprint, owner="ann")).stored


async def drive(stage, backend=None, holder="test", on_turn=None):
    return await asyncio.wait_for(
        supervise(backend or stage.backend, "digits", holder=holder, on_turn=on_turn), timeout=60 * PATIENCE
    )


def starts(stage) -> dict[str, int]:
    """How often each node and coordinator was started, by its folder."""
    root = stage.folder_of("digits").path
    files = sorted(root.rglob("started"))
    return {str(path.parent.relative_to(root)): len(path.read_text().split()) for path in files}


async def test_a_job_runs_to_its_end_and_keeps_its_story(tmp_path, home):
    """Its folder is readable by a person afterwards, and nothing of it runs."""
    stage = LocalStage(tmp_path, home)
    await submit(stage, nodes=2)

    with inside(stage, ends()):
        record = await drive(stage)

    assert (record.phase, record.released) == (Phase.SUCCEEDED, True)
    assert starts(stage) == {"coordinator/term-1": 1, "nodes/0/attempt-1.1": 1, "nodes/1/attempt-1.1": 1}
    folder = stage.folder_of("digits")
    names = {path.name for path in folder.path.iterdir()}
    assert {"job.yaml", "plan.json", "record.json", "status.json", "secret", "nodes", "coordinator"} <= names
    assert folder.secret.stat().st_mode & 0o777 == 0o600
    assert marked_with(record.uid) == ()


@pytest.mark.parametrize(
    ("failures", "stride"),
    [
        pytest.param(0, sized(2, 6), id="ends well"),
        pytest.param(1, 6, id="fails once, every third point", marks=pytest.mark.extended),
    ],
)
async def test_a_supervisor_may_be_killed_at_every_point(tmp_path, home, failures, stride):
    """After every save and every action: the next one ends the job alike; no node started twice, none left."""
    stage = LocalStage(tmp_path, home)
    # Odd numbers: to be killed before a step leaves the same as to be killed after the last one.
    for steps in range(1, 200, stride):
        await submit(stage)
        crashed = False
        with inside(stage, ends(failures=failures)):
            try:
                record = await drive(stage, Crashing(stage.backend, steps))
            except Crashed:
                crashed = True
                record = await drive(stage)

        assert (record.phase, record.retries) == (Phase.SUCCEEDED, failures)
        # 0: it was ended after it had made the file and before it had written to it.
        assert max(starts(stage).values()) == 1
        assert marked_with(record.uid) == ()
        await delete(stage.backend, "digits", holder="test")
        if not crashed:
            return
    pytest.fail("it never came to its end")


async def test_two_supervisors_are_one(tmp_path, home):
    """One acts, the other looks on; both come to the same record."""
    stage = LocalStage(tmp_path, home)
    await submit(stage)
    acting = set()

    def told_by(holder):
        return lambda snapshot: acting.add(holder) if snapshot.supervising and not snapshot.record.released else None

    with inside(stage, ends()):
        records = await asyncio.gather(
            *(drive(stage, stage.another(), holder=name, on_turn=told_by(name)) for name in ("one", "two"))
        )

    assert records[0] == records[1]
    assert len(acting) == 1
    assert set(starts(stage).values()) == {1}


async def test_the_next_supervisor_takes_over(tmp_path, home):
    """The first is cancelled while the job runs; the job does not notice, and the second drives it to its end."""
    stage = LocalStage(tmp_path, home)
    await submit(stage)
    seen_running = asyncio.Event()

    def on_turn(snapshot):
        if snapshot.record.phase is Phase.RUNNING:
            seen_running.set()

    first = asyncio.ensure_future(drive(stage, on_turn=on_turn))
    await seen_running.wait()
    await eventually_async(lambda: len(starts(stage)) == 2)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first

    with inside(stage, ends()):
        record = await drive(stage, stage.another())

    assert record.phase is Phase.SUCCEEDED
    assert starts(stage) == {"coordinator/term-1": 1, "nodes/0/attempt-1.1": 1}


@pytest.mark.parametrize("victim", [pytest.param("shim.json", id="its shim"), pytest.param("started", id="the node")])
async def test_a_killed_node_is_replaced(tmp_path, home, victim):
    """The other goes on; what a killed shim left is gone before the job is over."""
    stage = LocalStage(tmp_path, home, "--brood")
    await submit(stage, nodes=2, recovery={"node_replacements": 1})
    killed: list[int] = []

    def behave(stage, record):
        path = stage.folder_of("digits").node(1, 1, 1).path
        if not killed and (path / "started").exists() and (text := (path / victim).read_text()):
            number = json.loads(text)
            killed.append(number["pid"] if victim == "shim.json" else number)
            os.kill(killed[0], signal.SIGKILL)
        if record.phase is Phase.SUCCEEDED or stage.folder_of("digits").node(1, 1, 2).path.joinpath("started").exists():
            ends()(stage, record)

    with inside(stage, behave):
        record = await drive(stage)

    assert record.phase is Phase.SUCCEEDED
    assert [slot.incarnation for slot in record.slots] == [1, 2]
    assert [incident.culprit.exit_code for incident in record.incidents] == [None if victim == "shim.json" else 137]
    assert marked_with(record.uid) == ()


async def test_a_deleted_job_leaves_nothing(tmp_path, home):
    """No process, also none that ignores SIGTERM, no file, and no cgroup."""
    stage = LocalStage(tmp_path, home, "--deaf", "--brood")
    tolerance = {"forceful_deletion_grace_period": 0.3}
    stored = await submit(stage, nodes=2, fault_tolerance=tolerance)
    seen_running = asyncio.Event()

    def on_turn(snapshot):
        if snapshot.record.phase is Phase.RUNNING:
            seen_running.set()

    driving = asyncio.ensure_future(drive(stage, on_turn=on_turn))
    await seen_running.wait()
    await eventually_async(lambda: len(starts(stage)) == 3)

    await asyncio.wait_for(delete(stage.another(), "digits", holder="deleter"), timeout=60 * PATIENCE)

    assert await driving is None
    assert marked_with(stored.record.uid) == ()
    assert list((home / "jobs").iterdir()) == []
    assert cgroups(stored.record.uid) == []


async def test_a_detached_supervisor_outlives_its_starter(tmp_path, home):
    """In a session of its own, its words in the job's folder, it drives the job to its end, which here is its deletion."""
    stage = LocalStage(tmp_path, home)
    await submit(stage)
    log = stage.folder_of("digits").supervisor_log
    log.touch()

    async with stage.backend.hold("digits", holder="the test"):
        pid = await asyncio.to_thread(spawn_supervisor, home, "digits")
        await eventually_async(lambda: "the test" in log.read_text(), why="it should look on first")
        assert os.getsid(pid) == pid
        await request_deletion(stage.backend, "digits")

    await asyncio.to_thread(eventually, lambda: proc.start_ticks(pid) is None, why="it should end with the job")
    assert await stage.backend.names() == ()


def test_no_supervisor_is_left_for_a_job_that_is_not_there(home):
    """And no folder appears."""
    with pytest.raises(JobNotFoundError, match="job 'nobody' not found"):
        spawn_supervisor(home, "nobody")
    assert not home.exists()
