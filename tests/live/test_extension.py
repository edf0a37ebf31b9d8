"""The process of a failover extension: it answers, and whatever it does else keeps nobody from their work."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rallypoint.agent.node.adviser import Adviser
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Spawner
from rallypoint.wire.failover import Failover
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build
from tests.agent.test_extension import FAILURE
from tests.waiting import eventually_async

MODULE = """
import os, pathlib, time

class Told:
    def __init__(self):
        self.asked = 0
    def decide(self, failure):
        self.asked += 1
        return "node" if self.asked == 2 else "normal"

class Hangs:
    def decide(self, failure):
        marker = pathlib.Path("hung")
        if marker.exists():
            return "abort"
        marker.write_text(str(os.getpid()))
        time.sleep(600)

class Dies:
    def decide(self, failure):
        os._exit(3)
"""


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    reaper = Reaper()
    spawner = Spawner(reaper)
    yield spawner
    await eventually_async(lambda: not reaper._watched, timeout=20, why="whoever was killed is reaped")
    spawner.close()
    reaper.close()


def adviser(folder: Path, spawner: Spawner, name: str, within: float = 300.0) -> Adviser:
    (folder / "failover_of_job.py").write_text(MODULE)
    plan = build(
        Plan,
        name="j",
        role="r",
        min_nodes=1,
        max_nodes=1,
        entry=Entry.MODULE,
        entrypoint="x",
        workdir=str(folder),
        failover_extension=f"failover_of_job::{name}",
    )
    return Adviser(plan, spawner, answer_within=within)


async def test_one_instance_is_asked_about_every_failure(tmp_path: Path, spawner: Spawner) -> None:
    """It may remember what it was asked before."""
    refused: list[str] = []
    asked = adviser(tmp_path, spawner, "Told")
    asked.begin(refused.append)
    answers = [(await asked.ask(FAILURE)).failover for _ in range(3)]
    asked.close()
    assert answers == [Failover.NORMAL, Failover.NODE, Failover.NORMAL]
    assert refused == []


async def test_one_that_hangs_is_killed_and_started_again(tmp_path: Path, spawner: Spawner) -> None:
    """The failure that it hung on is answered NORMAL in time, the next one by a new process."""
    asked = adviser(tmp_path, spawner, "Hangs", within=3.0)
    asked.begin(lambda _: None)
    advice = await asked.ask(FAILURE)
    assert advice.failover is Failover.NORMAL
    assert advice.note == "failover extension failover_of_job::Hangs did not answer within 3 s; using NORMAL"
    hung = int((tmp_path / "hung").read_text())
    await eventually_async(lambda: not Path(f"/proc/{hung}").exists(), timeout=20)
    assert (await asked.ask(FAILURE)).failover is Failover.ABORT
    asked.close()


async def test_one_that_dies_is_normal(tmp_path: Path, spawner: Spawner) -> None:
    """Each time; it is started again each time."""
    asked = adviser(tmp_path, spawner, "Dies")
    asked.begin(lambda _: None)
    for _ in range(2):
        advice = await asked.ask(FAILURE)
        assert (advice.failover, advice.note) == (
            Failover.NORMAL,
            "failover extension failover_of_job::Dies exited without an answer; using NORMAL",
        )
    asked.close()


async def test_one_that_cannot_be_loaded_is_told_at_once(tmp_path: Path, spawner: Spawner) -> None:
    """The agent need not wait for a failure to learn of it."""
    refused: list[str] = []
    asked = adviser(tmp_path, spawner, "Nobody")
    asked.begin(refused.append)
    await eventually_async(lambda: refused, timeout=30)
    asked.close()
    assert refused == [
        "fault_tolerance.dynamic_failover_extension: failover_of_job::Nobody: module failover_of_job has no class Nobody"
    ]


async def test_its_process_ends_with_its_agent(tmp_path: Path, spawner: Spawner) -> None:
    """Closing leaves nobody behind."""
    asked = adviser(tmp_path, spawner, "Told")
    asked.begin(lambda _: None)
    await asked.ask(FAILURE)
    pid = asked._hosts[0].pid
    assert pid > 0
    os.kill(pid, 0)
    asked.close()
    await eventually_async(lambda: not Path(f"/proc/{pid}").exists(), timeout=20)
