"""Threads that wait in a circle for locks of each other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from rallypoint.agent.node.health.evidence import find_cycle, lock_owners
from tests.waiting import eventually

#: A process with mutexes of libc; `{}` is what its threads do.
PROGRAM = """
import ctypes, threading, time
libc, one, two = ctypes.CDLL(None), (ctypes.c_byte * 64)(), (ctypes.c_byte * 64)()
ready = threading.Barrier(2)
def other(first, second):
    libc.pthread_mutex_lock(first)
    ready.wait()
    libc.pthread_mutex_lock(second)
def holds(mutex):
    libc.pthread_mutex_lock(mutex)
    ready.wait()
    time.sleep(3600)
def spawn(*call):
    threading.Thread(target=call[0], args=call[1:], daemon=True).start()
print("begins", flush=True)
{}
"""

TWICE = "libc.pthread_mutex_lock(one); libc.pthread_mutex_lock(one)"
CIRCLE = "spawn(other, two, one); other(one, two)"
HELD = "spawn(holds, one); ready.wait(); libc.pthread_mutex_lock(one)"
PYTHON = "lock = threading.Lock(); lock.acquire(); lock.acquire()"
BESIDE = """ready = threading.Barrier(3)
spawn(other, one, two); spawn(other, two, one)
ready.wait(); time.sleep(3600)"""


@contextmanager
def process(code: str) -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM.format(code)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begins\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("code", "threads"),
    [pytest.param(TWICE, 1, id="a mutex that is taken twice"), pytest.param(CIRCLE, 2, id="two threads, two mutexes")],
)
def test_a_circle_is_found(code: str, threads: int) -> None:
    """In a real process, from the kernel and the mutexes."""
    with process(code) as pid:
        cycle = eventually(lambda: find_cycle(pid), why="the threads wait for each other")

    assert cycle.startswith(f"thread {pid}, which waits for a lock held by thread ")
    assert cycle.endswith(f"held by thread {pid}")
    assert cycle.count("waits") == threads


def test_a_thread_that_waits_for_one_that_sleeps_is_in_no_circle() -> None:
    """That one may release the mutex."""
    with process(HELD) as pid:
        owners = eventually(lambda: lock_owners(pid), why="the main thread waits")

        assert (list(owners), find_cycle(pid)) == ([pid], "")


def test_a_circle_beside_the_main_thread_is_none() -> None:
    """The main thread may go on without these."""
    with process(BESIDE) as pid:
        owners = eventually(lambda: found if len(found := lock_owners(pid)) == 2 else None, why="two threads wait")

        assert pid not in owners
        assert find_cycle(pid) == ""


def test_a_lock_of_python_has_no_owner() -> None:
    """Any thread may release it."""
    with process(PYTHON) as pid:
        eventually(lambda: _waits(pid), why="the main thread waits")

        assert lock_owners(pid) == {}


def _waits(pid: int) -> bool:
    """Return whether the main thread of a process is in the system call `futex`."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("202", "98")


@pytest.mark.parametrize(
    ("owners", "cycle"),
    [
        pytest.param({}, "", id="nobody waits"),
        pytest.param({7: 8}, "", id="for a thread that waits for nothing"),
        pytest.param({8: 9, 9: 8}, "", id="two others"),
        pytest.param(
            {7: 8, 8: 9, 9: 8},
            "thread 7, which waits for a lock held by thread 8, which waits for a lock held by thread 9, which "
            "waits for a lock held by thread 8",
            id="for a circle of others",
        ),
    ],
)
def test_the_circle_in_words(owners: Mapping[int, int], cycle: str) -> None:
    """From the main thread on."""
    assert find_cycle(7, lambda _: owners) == cycle


def test_a_process_that_is_gone_waits_for_nothing() -> None:
    """Nor one that may not be traced."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    assert lock_owners(child.pid) == {}
    assert lock_owners(os.getpid()) == {}
