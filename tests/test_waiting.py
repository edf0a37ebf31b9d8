from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest
from blockbuster import BlockingError

from rallypoint.wire.progress import ProgressFile
from tests.leftovers import marked_with
from tests.waiting import eventually, eventually_async


def test_eventually_returns_the_first_truthy_value():
    """What the predicate found is handed back, so that a test need not ask again."""
    values = iter([None, 0, "found", "later"])

    assert eventually(lambda: next(values), every=0.0) == "found"


def test_eventually_tells_what_it_saw_last():
    """A time-out names the condition and the last value, because the next question is always what was there instead."""
    with pytest.raises(AssertionError, match=r"two nodes: not so after 0 s; the last value was \[\]"):
        eventually(list, timeout=0.0, why="two nodes")


async def _later() -> str:
    await asyncio.sleep(0)
    return "found"


@pytest.mark.parametrize(
    "predicate", [pytest.param(_later, id="coroutine function"), pytest.param(lambda: "found", id="function")]
)
async def test_eventually_async_takes_both_kinds_of_predicate(predicate):
    """In an event loop the predicate may wait itself, or be plain."""
    assert await eventually_async(predicate) == "found"


def test_a_process_is_found_by_its_home(home):
    """A child that inherited this test's home is found by it, whatever session it lives in, until it has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        found = eventually(lambda: marked_with(str(home)))
        assert [(process.pid, "input()" in process.command) for process in found] == [(child.pid, True)]
    finally:
        child.communicate(b"\n")

    assert marked_with(str(home)) == ()


class _Reluctant:
    """A path whose file opens slowly; the guard knows code by its file, so code of ours must be the one that opens it."""

    def open(self, mode):
        time.sleep(0)
        raise FileNotFoundError


async def test_a_blocking_call_of_ours_in_a_loop_is_an_error():
    """The guard sees through our frames: what blocks inside an event loop is refused, wherever it is called."""
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        ProgressFile.open(_Reluctant())  # type: ignore[arg-type]


@pytest.mark.may_block("the exception is what is tested")
async def test_a_blocking_call_with_a_reason_is_allowed():
    """A test that says why may block."""
    with pytest.raises(FileNotFoundError):
        ProgressFile.open(_Reluctant())  # type: ignore[arg-type]
