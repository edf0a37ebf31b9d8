"""The niceness of actors, in processes that have a higher one than their parent, as Ray's workers have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.ray.clusters import can_lower_niceness

#: Largest niceness of these tests from which a process can be raised by 3.
LARGEST = 16

pytestmark = pytest.mark.skipif(
    os.getpriority(os.PRIO_PROCESS, 0) > LARGEST and not can_lower_niceness(),
    reason="the tests run at a niceness that cannot be raised by 3, and this user may not lower it",
)

#: Has one more thread, raises its niceness as a Ray worker does, and prints that of each thread once it has matched its
#: parent's. With the word `unprivileged` it gives up the right to lower its niceness before. Its parent has a niceness of at
#: most LARGEST, whatever that of the tests is.
SCRIPT = f"""\
import os
os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, 0), {LARGEST}))
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

import ctypes, os, sys, threading
from rallypoint.backends.ray.cluster.priority import SETTING, match_priority

def give_up_the_right():
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    data[0] &= ~(1 << 23)  # CAP_SYS_NICE, of the effective capabilities
    assert libc.capset(header, data) == 0

before = os.getpriority(os.PRIO_PROCESS, 0)
os.nice(3)
threading.Thread(target=threading.Event().wait, daemon=True).start()
if "unprivileged" in sys.argv:
    give_up_the_right()
match_priority(0 if "elsewhere" in sys.argv else os.getppid(), os.environ.get(SETTING))
print(*(os.getpriority(os.PRIO_PROCESS, int(thread)) - before for thread in os.listdir("/proc/self/task")), flush=True)
os._exit(0)
"""


def run(*words: str, **variables: str) -> tuple[list[int], str]:
    """Return what is left of the 3 that were added to the niceness, for each thread, and what was logged."""
    command = (sys.executable, "-c", SCRIPT, *words)
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()], done.stderr


@pytest.mark.skipif(not can_lower_niceness(), reason="this user may not lower the niceness of a process")
def test_an_actor_has_the_niceness_of_the_raylet():
    """With all its threads, so whichever starts a child process."""
    added, logged = run()

    assert (added, logged) == ([0, 0], "")


def test_an_actor_without_the_right_keeps_its_niceness_and_says_what_to_do():
    """Once, with both values."""
    added, logged = run("unprivileged")

    assert added == [3, 3]
    assert logged.count("\n") == 1
    assert "start the Ray nodes with RAY_worker_niceness=0" in logged


@pytest.mark.parametrize("value", ["0", "3", "15", ""])
def test_a_niceness_that_was_set_stays(value):
    """Whoever starts the Ray nodes has decided."""
    assert run(RAY_worker_niceness=value) == ([3, 3], "")


def test_a_raylet_that_cannot_be_seen_changes_nothing():
    """It is in another PID namespace."""
    assert run("elsewhere") == ([3, 3], "")
