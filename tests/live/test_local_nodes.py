"""One node of the local backend: how it starts, how it ends, and what is known of it when its supervisor is gone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.backends.local import shim
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.proc import start_ticks
from rallypoint.supervision.actions import Purge
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.record import Phase
from tests.backends.stage import LocalStage
from tests.live.local_nodes import CREATE, FORCE, REMOVE, cgroups, deploy, deployed
from tests.waiting import eventually, eventually_async

ROOT = Path(__file__).parents[2]


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def test_a_node_belongs_to_nobody_but_its_shim(tmp_path, home):
    """Its shim is a session of its own and no child of the supervisor, and holds the mark, as the node does."""
    async with deployed(LocalStage(tmp_path, home)) as job:
        pid = await job.running()
        parent, group, session = (int(field) for field in stat(pid)[1:4])

        assert parent == (await job.shim()).pid == session
        assert group == pid
        assert int(stat(parent)[1]) != os.getpid()
        assert await job.processes() == {pid, parent}


def start_and_be_killed(stage, home: Path) -> None:
    """A supervisor's life in a process of its own: it starts the node and is killed."""
    code = (
        "import asyncio, sys; from pathlib import Path;"
        "from rallypoint.backends.local.backend import LocalBackend;"
        "from tests.live.local_nodes import CREATE;"
        f"b = LocalBackend(Path({str(home)!r}), agent_command={stage.agent!r});"
        "s = asyncio.run(b.load('digits'));"
        "asyncio.run(b.act(s.record, s.plan, CREATE));"
        "print('acted', flush=True); sys.stdin.read()"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == b"acted\n"
    os.killpg(supervisor.pid, signal.SIGKILL)
    supervisor.communicate()


async def test_the_exit_code_outlives_the_supervisor(tmp_path, home):
    """The process that started a node is killed; the next one finds the node, and later its exit code."""
    stage = LocalStage(tmp_path, home)
    job = await deploy(stage)
    await asyncio.to_thread(start_and_be_killed, stage, home)

    await job.running()
    assert (await job.look()).state is NodeState.RUNNING
    stage.end_node(job.stored.record, 0, 7)
    seen = await job.ended()

    assert (seen.state, seen.exit_code, seen.log_tail) == (NodeState.FAILED, 7, ("the stand-in waits",))


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, id="KILL"), pytest.param(signal.SIGABRT, id="ABRT")])
async def test_a_node_that_a_signal_ended(tmp_path, home, number):
    """Its exit code is 128 and the signal's number, as shells have it, and the reason names the signal."""
    async with deployed(LocalStage(tmp_path, home)) as job:
        os.kill(await job.running(), number)
        seen = await job.ended()

        assert (seen.state, seen.exit_code, seen.reason) == (NodeState.FAILED, 128 + number, f"killed by {number.name}")


async def test_a_node_whose_log_was_tidied_up_is_still_known(tmp_path, home):
    """Its exit code does not depend on what it said."""
    async with deployed(LocalStage(tmp_path, home)) as job:
        await job.running()
        job.node.log.unlink()
        job.stage.end_node(job.stored.record, 0, 7)
        seen = await job.ended()

        assert (seen.exit_code, seen.log_tail) == (7, ())


async def test_what_a_node_leaves_behind_is_gone_before_its_exit_file_appears(tmp_path, home):
    """Also what has left its session and lost its parent."""
    async with deployed(LocalStage(tmp_path, home, "--brood")) as job:
        await job.running()
        assert len(await job.processes()) == 4

        job.stage.end_node(job.stored.record, 0, 0)
        eventually((job.node.path / "exit.json").exists)

        assert await job.processes() <= {(await job.shim()).pid}
        assert (await job.ended()).state is NodeState.SUCCEEDED


async def test_a_node_whose_shim_was_killed_is_lost(tmp_path, home):
    """It is never a success; what it left is seen until it is removed, and it stays lost."""
    async with deployed(LocalStage(tmp_path, home, "--brood")) as job:
        await job.running()
        os.kill((await job.shim()).pid, signal.SIGKILL)
        lost = await eventually_async(job.look_lost)

        assert (lost.present, lost.exit_code) == (True, None)
        assert len(await job.processes()) == 3
        await job.force()
        seen = await job.look()
        assert (seen.state, seen.present, seen.exit_code) == (NodeState.LOST, False, None)


async def test_what_has_cleared_its_environment_is_found_by_its_cgroup(tmp_path, home):
    """Where this machine lets us have cgroups nobody gets away, even when the shim was killed."""
    async with deployed(LocalStage(tmp_path, home, "--bare")) as job:
        await job.running()
        cgroup = Path((await job.shim()).cgroup or "/nowhere")
        if not (cgroup / "cgroup.kill").exists():
            os.kill((await job.shim()).pid, signal.SIGTERM)
            pytest.skip("no cgroup v2 that this user may write")
        members = [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
        assert len(members) == 2
        os.kill((await job.shim()).pid, signal.SIGKILL)
        await eventually_async(job.look_lost)

        await job.force()

        assert [pid for pid in members if await asyncio.to_thread(start_ticks, pid) is not None] == []
        eventually(lambda: not cgroup.exists())


async def test_a_node_is_asked_once_and_killed_by_force(tmp_path, home):
    """One that ignores SIGTERM is ending until it is forced, and hears of it once however often it is asked."""
    async with deployed(LocalStage(tmp_path, home, "--deaf")) as job:
        await job.running()
        await job.act(REMOVE, REMOVE)
        eventually((job.node.path / "terms").exists)
        await job.act(REMOVE)

        asked = await job.look()
        assert (asked.state, asked.deleting) == (NodeState.ENDING, True)
        await job.act(FORCE)
        seen = await job.ended()

        assert (seen.state, seen.exit_code, seen.deleting) == (NodeState.FAILED, 137, False)
        assert (job.node.path / "terms").read_text() == "TERM\n"


async def test_a_stopped_shim_is_no_obstacle(tmp_path, home):
    """A shim that somebody sent SIGSTOP still ends its node."""
    async with deployed(LocalStage(tmp_path, home, "--deaf")) as job:
        await job.running()
        os.kill((await job.shim()).pid, signal.SIGSTOP)

        await job.act(FORCE)

        assert (await job.ended()).exit_code == 137


async def test_many_starts_are_one(tmp_path, home):
    """Whoever asks, at the same moment or later, also after its end."""
    async with deployed(LocalStage(tmp_path, home)) as job:
        backends = [job.stage.another() for _ in range(6)]
        await asyncio.gather(*(backend.act(job.stored.record, job.stored.plan, CREATE) for backend in backends))
        pid = await job.running()

        job.stage.end_node(job.stored.record, 0, 0)
        await job.ended()
        await job.act(CREATE)

        assert job.started() == [pid]


async def test_many_first_starts_are_one(tmp_path, home):
    """Supervisors that know nothing of each other may race for the very first start."""
    job = await deploy(LocalStage(tmp_path, home))
    backends = [job.stage.another() for _ in range(6)]
    await asyncio.gather(*(backend.act(job.stored.record, job.stored.plan, CREATE) for backend in backends))

    await job.running()
    await job.act(FORCE)
    await job.ended()

    assert len(job.started()) == 1


async def test_a_folder_that_was_made_but_never_used_is_used(tmp_path, home):
    """A supervisor was killed between the folder and the shim: nothing is seen, and the next start works."""
    job = await deploy(LocalStage(tmp_path, home))
    job.node.path.mkdir(parents=True)
    (job.node.path / shim.LOCK_FILE).touch()
    assert await job.look() is None

    await job.act(CREATE)

    assert (await job.look()).state is NodeState.RUNNING
    await job.act(FORCE)
    await job.ended()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"phase": Phase.RESETTING}, id="resetting"),
        pytest.param({"phase": Phase.FAILED}, id="over"),
        pytest.param({"attempt": 2}, id="next attempt"),
        pytest.param({"deletion": True}, id="to be deleted"),
    ],
)
async def test_a_start_that_comes_too_late_starts_nothing(tmp_path, home, change):
    """A supervisor was stopped between its decision and its action; the record has moved on meanwhile."""
    job = await deploy(LocalStage(tmp_path, home))
    record = dataclasses.replace(job.stored.record, **change)
    await job.stage.backend.save(record, version=job.stored.version)

    await job.act(CREATE)
    seen = await job.ended()

    assert (seen.state, seen.reason) == (NodeState.LOST, "not started: the job no longer needed it")
    assert cgroups(record.uid) == []
    assert job.started() == []


async def test_a_node_that_cannot_be_executed_ends_with_127(tmp_path, home):
    """Its log says why, and so does the observation."""
    stage = LocalStage(tmp_path, home)
    stage.backend = LocalBackend(home, agent_command=["/nowhere/python"])
    job = await deploy(stage)

    await job.act(CREATE)
    seen = await job.ended()

    assert (seen.state, seen.exit_code) == (NodeState.FAILED, 127)
    assert seen.reason == "cannot start /nowhere/python: No such file or directory"


async def test_a_node_whose_job_was_removed_is_killed_by_its_shim(tmp_path, home):
    """Without any supervisor, and with all that descends from it; a job of the name that is there by then is left alone."""
    stage = LocalStage(tmp_path, home, "--brood", "--deaf")
    job = await deploy(stage)
    await job.act(CREATE)
    await job.running()
    assert len(await job.processes()) == 4

    await asyncio.to_thread(stage.delete_from_outside, "digits")
    async with deployed(stage) as another:
        pid = await another.running()

        async def all_gone():
            return not await job.processes()

        await eventually_async(all_gone)
        assert (await another.look()).state is NodeState.RUNNING
        assert pid in await another.processes()


async def test_what_happens_after_a_purge_brings_nothing_back(tmp_path, home):
    """A late start finds no folder and makes none."""
    job = await deploy(LocalStage(tmp_path, home))
    await job.act(Purge())

    with pytest.raises(Exception, match="deleted"):
        await job.act(CREATE)

    assert list((home / "jobs").iterdir()) == []


@pytest.fixture
def small_disk(home):
    """A home on a disk of half a megabyte."""
    home.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", home]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small disk")
    yield home
    subprocess.run(["umount", home], check=True)


def fill(disk: Path) -> None:
    """Write until nothing fits any more."""
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))


async def test_a_full_disk_loses_no_exit_code(tmp_path, small_disk):
    """Room for the exit file was taken when the node started."""
    async with deployed(LocalStage(tmp_path, small_disk)) as job:
        await job.running()
        (job.node.path / "end.tmp").write_text("7")
        fill(small_disk)
        (job.node.path / "end.tmp").rename(job.node.path / "end")

        assert (await job.ended()).exit_code == 7
        (small_disk / "ballast").unlink()
