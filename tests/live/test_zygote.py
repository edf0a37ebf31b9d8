"""Workers that are killed come back as forks of a zygote with the real torch, under a real agent."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent import linux
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Spawner
from rallypoint.agent.workers.zygote.standby_pool import StandbyPool, Wanted
from rallypoint.wire.exits import Exit
from tests.live import forked
from tests.live.agent_processes import OBEY, Agents, agents, alive, said
from tests.live.forked import light_torch
from tests.waiting import eventually, eventually_async

TWO = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 3)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


@pytest.fixture
def subreaper() -> Iterator[None]:
    linux.become_subreaper()
    yield
    forked.no_subreaper()


def children(pid: int) -> dict[int, str]:
    """Return the living children of a process, and what each was started as."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            if alive(int(child)):
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


def forks(agent: int) -> set[int]:
    """Return the zygote and its forks: they all are called like the zygote."""
    return {pid for pid, command in children(agent).items() if "workers.zygote" in command}


def started_at(pid: int) -> int:
    """Return when a process was started, in the kernel's ticks. Its number says nothing: numbers begin anew."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def standing_by(agent: int, workers: set[int], count: int) -> set[int]:
    """Wait until so many forks beside the zygote are sessions of their own and no workers yet; return all of them."""

    def found() -> set[int] | None:
        known = forks(agent)
        return known if len(known - workers) == count else None

    return eventually(found, timeout=60.0, why=f"{count} forks of the zygote")


@pytest.mark.extended
def test_the_dead_come_back_as_forks(job: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both workers of the next round are forks, and children of the agent; a zygote that dies is replaced, unnoticed."""
    monkeypatch.setenv("RALLYPOINT_LOG_LEVEL", "DEBUG")  # what each standby costs is nothing for every run's log
    run = job.run(*TWO, OBEY, job.work)
    first = job.running(1, 2)
    standing_by(run.pid, set(), 3)  # the zygote and two standbys

    os.kill(first[1], signal.SIGKILL)
    second = job.running(2, 2)
    assert set(second.values()) <= forks(run.pid)
    assert not any(map(alive, first.values()))

    zygote = min(forks(run.pid), key=started_at)
    os.kill(zygote, signal.SIGKILL)
    eventually(lambda: zygote not in children(run.pid))
    assert all(map(alive, second.values()))

    os.kill(second[0], signal.SIGKILL)
    third = job.running(3, 2)
    job.finish()
    code, output = said(run)

    assert code == Exit.OK, output
    assert "the preload process (zygote) exited with signal 9; the agent starts it again" in output
    assert not any(map(alive, {*first.values(), *second.values(), *third.values()}))
    assert re.search(r"standby worker pid=\d+ is ready; memory: \d+ MB private, \d+ MB proportional \(PSS\)", output), output
    assert "rank 1 is done" in output


def test_nobody_is_left_when_the_agent_is_killed(tmp_path: Path) -> None:
    """The kernel ends forks with their agent, as it ends programs. It does not take the real torch to see that."""
    with agents(tmp_path) as job:
        light_torch(tmp_path / "no_torch", "import random\ndefault_generator = random.Random()\n")
        forks = kill_an_agent_with_forks(job)

        assert len(forks) >= 3
        assert eventually(lambda: not any(map(alive, forks)), why="an end of all forks")


def test_a_standby_that_cannot_become_a_worker_costs_no_restart(tmp_path: Path) -> None:
    """Here because its torch has no random numbers; programs are started in the place of such standbys."""
    with agents(tmp_path) as job:
        light_torch(tmp_path / "no_torch")
        run = job.run(*TWO, OBEY, job.work)
        first = job.running(1, 2)
        standing_by(run.pid, set(), 3)
        os.kill(first[0], signal.SIGKILL)
        second = job.running(2, 2)
        commands = {pid: command for pid, command in children(run.pid).items() if pid in second.values()}
        job.finish()
        code, output = said(run)

    assert (code, [OBEY.name in command for command in commands.values()]) == (Exit.OK, [True, True]), output
    assert "failed: AttributeError: module 'torch' has no attribute 'default_generator'" in output


def kill_an_agent_with_forks(job: Agents) -> set[int]:
    """Return the process IDs of the standbys and workers that the killed agent had forked."""
    run = job.run(*TWO, OBEY, job.work)
    first = job.running(1, 2)
    waiting = standing_by(run.pid, set(), 3)
    os.kill(first[0], signal.SIGKILL)
    second = job.running(2, 2)

    os.kill(run.pid, signal.SIGKILL)
    return {*waiting, *second.values()}


@pytest.mark.may_block("reads /proc, which waits for no disk")
async def test_a_standby_pool_that_closes_leaves_nobody(tmp_path: Path, subreaper: None) -> None:
    """No process, and no zombie in whoever runs an agent in a process of their own."""
    reaper = Reaper()
    spawner = Spawner(reaper)
    standbys = StandbyPool(spawner, reaper, Wanted(standbys=2))
    standbys.begin({**os.environ, **light_torch(tmp_path)}, "")
    await eventually_async(lambda: len(standbys.waiting) == 2, why="two standbys")
    pids = {standby.pid for standby in standbys.waiting}

    standbys.close()
    reaper.close()
    spawner.close()

    assert await eventually_async(lambda: not pids & set(linux.children()), why="an end of the standbys")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        pytest.param(("--no-python", "sh", "-c", "exit 0"), "sh is not this Python", id="no Python"),
        pytest.param(("--start-method", "spawn", "NOOP"), "but the start method is spawn", id="asked for"),
    ],
)
def test_what_cannot_be_forked_is_a_program(job: Agents, args: tuple[str, ...], why: str) -> None:
    """And why is said once."""
    noop = job.folder / "noop.py"
    noop.touch()

    code, output = said(job.run(*TWO, *(str(noop) if arg == "NOOP" else arg for arg in args)))

    assert (code, output.count("each worker starts as a new process")) == (Exit.OK, 1), output
    assert why in output
