"""Starting, watching and reaping: the few promises that only real processes can prove."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rallypoint.agent import linux
from rallypoint.agent.linux import become_subreaper, children
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Command, Spawner
from tests.waiting import PATIENCE, eventually_async

ORPHAN = "import os, sys; pid = os.fork(); pid or (os.setsid(), os.execvp('sleep', ['sleep', '600'])); print(pid, flush=True)"


@pytest.fixture
async def reaper() -> AsyncIterator[Reaper]:
    reaper = Reaper()
    yield reaper
    reaper.close()


@pytest.fixture
def subreaper() -> Iterator[None]:
    assert become_subreaper()
    yield
    assert linux._prctl is not None
    linux._prctl(linux._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)  # the orphans of other tests are none of ours


def python(code: str, stdout: int | None = None) -> Command:
    return Command(argv=[sys.executable, "-c", code], env=dict(os.environ), stdout=stdout)


@pytest.mark.parametrize("pidfd", [pytest.param(True, id="by pidfd"), pytest.param(False, id="by a waiting thread")])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("raise SystemExit(5)", 5, id="exit code"),
        pytest.param("import os; os.kill(os.getpid(), 9)", -9, id="signal"),
    ],
)
async def test_an_end_is_seen_with_its_code(
    code: str, expected: int, *, pidfd: bool, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel or a sandbox knows no pidfd."""
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    spawner, ended = Spawner(reaper), asyncio.get_running_loop().create_future()

    await spawner.spawn(python(code), ended.set_result)

    assert await asyncio.wait_for(ended, timeout=20 * PATIENCE) == expected
    spawner.close()


@pytest.mark.may_block("reads /proc, which waits for no disk")
async def test_what_cannot_be_started_is_an_error_and_no_child(reaper: Reaper) -> None:
    """The caller is told; nobody is left to reap."""
    spawner = Spawner(reaper)
    with pytest.raises(FileNotFoundError):
        await spawner.spawn(Command(argv=["/no/such/program"], env={}), lambda _: None)
    spawner.close()

    assert children() == ()


async def test_children_end_with_the_spawner(reaper: Reaper) -> None:
    """The kernel kills them when the thread that forked them is gone, which a killed agent's threads all are."""
    spawner = Spawner(reaper)
    ended = asyncio.get_running_loop().create_future()
    await spawner.spawn(python("import time; time.sleep(600)"), ended.set_result)
    spawner.close()

    assert await asyncio.wait_for(ended, timeout=20 * PATIENCE) == -9


@pytest.mark.may_block("reads /proc, which waits for no disk")
async def test_orphans_are_adopted_and_reaped(reaper: Reaper, tmp_path: Path, subreaper: None) -> None:
    """A grandchild in a session of its own becomes our child when its parent ends, and leaves no zombie."""
    spawner, ended = Spawner(reaper), asyncio.get_running_loop().create_future()
    changed = asyncio.Event()
    reaper.listen(changed.set)
    with (tmp_path / "pid").open("wb") as told:
        await spawner.spawn(python(ORPHAN, told.fileno()), ended.set_result)
    await ended
    orphan = int((tmp_path / "pid").read_text())
    await eventually_async(lambda: orphan in children())
    changed.clear()
    os.kill(orphan, 9)
    await asyncio.wait_for(changed.wait(), timeout=20 * PATIENCE)
    spawner.close()

    assert orphan not in children()
