"""The workers of a round that have no process yet, or never get one."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from rallypoint.agent.workers import group as workers
from rallypoint.agent.workers.group import Worker, WorkerGroup
from rallypoint.agent.workers.logs import RankLogs
from rallypoint.agent.workers.spawner import Command
from tests.agent.fakes import DeafReaper, ReadySpawner, StuckSpawner
from tests.agent.test_worker_env import PLACE

COMMAND = Command(argv=["python"], env={})


def born(spawner: StuckSpawner | ReadySpawner) -> tuple[WorkerGroup, Worker]:
    worker = Worker(place=PLACE, logs=RankLogs(out=None, err=None, error_file=Path("x")))
    return WorkerGroup(spawner, DeafReaper(), grace=1.0, now=lambda: 5.0), worker


@pytest.mark.may_block("reads /proc, which waits for no disk")
async def test_a_worker_without_a_number_gets_no_signal() -> None:
    """A second SIGTERM while it is born must not reach the agent's own process group, which is group 0 to the kernel."""
    spawner = StuckSpawner()
    group, worker = born(spawner)
    starting = asyncio.create_task(group.start(worker, COMMAND, lambda _: None))
    await asyncio.sleep(0)
    assert group.workers == [worker]

    group.kill()

    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert worker.group_gone


@pytest.mark.may_block("reads /proc, which waits for no disk")
@pytest.mark.parametrize(
    "error", [pytest.param(OSError(2, "no such file"), id="the system's"), pytest.param(ValueError("null byte"), id="another")]
)
async def test_a_worker_that_cannot_be_started_is_gone(error: Exception) -> None:
    """Whatever the reason, there is nobody to stop."""
    group, worker = born(StuckSpawner(error))
    with pytest.raises(type(error)):
        await group.start(worker, COMMAND, lambda _: None)
    gone: list[bool] = []

    group.kill()
    group.stop(lambda: gone.append(True))

    assert (worker.group_gone, worker.code, gone) == (True, 127, [True])


@pytest.mark.may_block("reads /proc, which waits for no disk")
@pytest.mark.parametrize(
    ("code", "at_once", "ours"),
    [
        pytest.param(-signal.SIGKILL, True, True, id="killed"),
        pytest.param(-signal.SIGTERM, True, True, id="terminated before the KILL came"),
        pytest.param(128 + signal.SIGTERM, True, True, id="its shell was"),
        pytest.param(66, True, False, id="it had ended by itself"),
        pytest.param(-signal.SIGSEGV, True, False, id="it had crashed"),
        pytest.param(66, False, True, id="there was time to answer the signal"),
    ],
)
async def test_who_had_ended_before_it_was_stopped(code: int, at_once: bool, ours: bool) -> None:
    """The end of a process may be seen after those of its peers: then it is being stopped with them already."""
    spawner = ReadySpawner()
    group, worker = born(spawner)
    await group.start(worker, COMMAND, lambda _: None)
    group.stop(lambda: None)
    if at_once:
        group.kill()

    spawner.ended(code)

    assert (worker.code, worker.stopped) == (code, ours)
    group.close()


@pytest.mark.parametrize("group", [pytest.param(0, id="our own"), pytest.param(1, id="of init"), pytest.param(-5, id="none")])
def test_a_group_that_no_worker_leads_is_never_signalled(group: int) -> None:
    """The last line of defence refuses."""
    with pytest.raises(ValueError, match=f"process group id {group} is not allowed"):
        workers._signal_group(group, signal.SIGCONT)
