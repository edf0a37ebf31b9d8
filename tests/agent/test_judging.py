"""Which worker of a node is to blame when one of them has lost its connection to another."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.node.judging import another_ends
from rallypoint.agent.workers.group import Worker
from rallypoint.agent.workers.logs import RankLogs
from tests.agent.test_worker_env import PLACE


def worker(local_rank: int, pid: int, **more: object) -> Worker:
    place = dataclasses.replace(PLACE, local_rank=local_rank)
    return Worker(place=place, logs=RankLogs(out=None, err=None, error_file=Path("/e")), pid=pid, **more)  # type: ignore[arg-type]


@pytest.fixture
def ended() -> Iterator[int]:
    """The ID of a process that has ended and is still in the process table."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid
    child.wait()


def test_a_worker_that_has_failed_or_is_ending_is_to_blame(ended: int) -> None:
    """Fails if only the process started for a worker is looked at, or only workers without a reported end."""
    lives = os.getpid()

    assert not another_ends(0, [worker(0, lives), worker(1, lives)], {})
    assert another_ends(0, [worker(0, lives), worker(1, ended)], {})
    assert another_ends(0, [worker(0, lives), worker(1, lives)], {1: ended})
    assert another_ends(0, [worker(0, lives), worker(1, 0, code=-9)], {})


def test_a_worker_that_was_done_or_stopped_is_not_to_blame(ended: int) -> None:
    """Fails if a worker that succeeded, was stopped, or lost the connection itself counts as another that ends."""
    lives = os.getpid()

    assert not another_ends(0, [worker(0, lives), worker(1, 0, code=0)], {})
    assert not another_ends(0, [worker(0, lives), worker(1, 0, code=-15, stopped=True)], {})
    assert not another_ends(0, [worker(0, ended), worker(1, lives)], {0: ended})


def test_a_process_that_is_gone_has_ended(ended: int) -> None:
    """Fails if a process that the agent has waited for, whose report is still queued, counts as alive."""
    os.waitpid(ended, 0)

    assert another_ends(0, [worker(0, os.getpid()), worker(1, ended)], {})
