"""What the local backend makes of files and processes that are not as they should be."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal

import pytest

from rallypoint.agent.coordinator.sink import FileSink, read_status
from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import proc
from rallypoint.backends.local.changes import LocalChanges
from rallypoint.backends.local.detach import spawn_supervisor
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.supervision.actions import CreateNode
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.record import Phase
from tests.backends.stage import LocalStage, running
from tests.waiting import eventually, eventually_async


@pytest.fixture
def place(tmp_path, home):
    return LocalStage(tmp_path, home)


async def submitted(place):
    return await place.backend.submit(place.backend.plan(place.job()), owner="ann")


class Starved:
    """No file can be opened meanwhile; those that are open stay so."""

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.before)


async def test_a_record_that_cannot_be_opened_just_now(place):
    """Is an error of the backend, which is tried again, and never a job that is not there."""
    await submitted(place)

    with Starved(), pytest.raises(BackendError, match="Too many open files"):
        await place.backend.load("digits")

    assert await place.backend.load("digits") is not None


def test_a_process_that_cannot_be_looked_at_just_now_has_not_ended():
    """Else a moment without descriptors would be the loss of every node."""
    with Starved(), pytest.raises(OSError, match="Too many open files"):
        proc.start_ticks(os.getpid())


@pytest.mark.live
async def test_a_shim_that_cannot_be_opened_just_now(place):
    """Following it fails as an error of the backend."""
    stored = await deployed(place)
    following = LocalChanges(place.folder_of("digits"))
    try:
        with Starved(), pytest.raises(BackendError):
            await in_thread(following.open)
    finally:
        following.close()
        shim = await in_thread(place.folder_of("digits").node(0, 1, 1).shim)
        await in_thread(shim.send, signal.SIGUSR1, user=os.geteuid())
        await ended(place, stored)


@pytest.mark.live
async def test_a_node_that_was_lost_is_looked_at_once(place):
    """It stays lost; /proc is not searched for it for ever."""
    stored = await deployed(place)
    shim = await in_thread(place.folder_of("digits").node(0, 1, 1).shim)
    os.kill(shim.pid, signal.SIGKILL)
    await in_thread(eventually, lambda: not shim.alive())

    async def killed():
        # Again and again: for a moment after exec the kernel shows no environment, and so no mark.
        await in_thread(proc.send_to_marked, shim.mark, signal.SIGKILL, user=os.geteuid())
        return not (await place.backend.observe(stored.record)).present

    await eventually_async(killed)

    (lost,) = (await place.backend.observe(stored.record)).nodes
    (place.folder_of("digits").node(0, 1, 1).path / "shim.json").unlink()

    assert lost.state is NodeState.LOST
    assert (await place.backend.observe(stored.record)).nodes == (lost,)


async def deployed(place):
    stored = await submitted(place)
    record = dataclasses.replace(stored.record, attempt=1, term=1, phase=Phase.RESUMING)
    stored = await place.backend.save(record, version=stored.version)
    await place.backend.act(stored.record, stored.plan, CreateNode(attempt=1, node=0, incarnation=1))
    return stored


async def ended(place, stored):
    async def nothing():
        return not (await place.backend.observe(stored.record)).present

    await eventually_async(nothing)


@pytest.mark.parametrize(
    "text", [pytest.param("", id="empty"), pytest.param("{", id="cut"), pytest.param('{"version": 99}', id="another version")]
)
async def test_a_status_that_makes_no_sense_is_none(place, caplog, text):
    """Said once; the job goes on, and can be deleted."""
    stored = await submitted(place)
    place.folder_of("digits").status.write_text(text)

    seen = [await place.backend.observe(stored.record) for _ in range(3)]

    assert [each.status for each in seen] == [None, None, None]
    assert await place.backend.status("digits") is None
    assert [message for message in caplog.messages if "status.json" in message] == [caplog.messages[0]]


async def test_a_coordinator_starts_without_a_status_that_makes_no_sense(tmp_path, place):
    """The file is kept for people, under another name, and the next status takes its place."""
    path = tmp_path / "status.json"
    path.write_text("edited")
    stored = await submitted(place)
    status = running(dataclasses.replace(stored.record, attempt=1, term=1))

    await FileSink(path).publish(status)

    assert await in_thread(read_status, path) == status
    assert (tmp_path / "status.json.unreadable").read_text() == "edited"


@pytest.mark.live
def test_a_detached_supervisor_is_nobodys_child(home):
    """A triggerer that starts thousands of them has none to reap."""
    (home / "jobs" / "digits").mkdir(parents=True)

    pid = spawn_supervisor(home, "digits")

    assert pid not in proc.children()
    eventually(lambda: proc.start_ticks(pid) is None)
