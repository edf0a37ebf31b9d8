"""Queues between the processes of two roles."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.live.role_processes import Instance, RoleJob, role_job
from tests.waiting import eventually

OWNER = """
import time
from rallypoint.training.roles import *
queue = DataQueue("samples", "trainer", maxsize=3)
"""

USER = """
import pathlib, queue as stdlib, sys, time
from rallypoint.training.roles import *

def until(name):
    while not pathlib.Path(__file__).with_name(name).exists():
        time.sleep(0.01)

queue = DataQueue("samples", "trainer", timeout=20)
"""

WAIT = "\nserve().wait()\n"


@pytest.fixture
def job(tmp_path):
    """A trainer that owns a queue, and two rollouts that use it."""
    with role_job(tmp_path, trainer=("simple", 1), rollout=("simple", 2)) as job:
        yield job


def line(instance: Instance, pattern: str) -> re.Match[str]:
    """Wait for a line of an instance."""
    return eventually(lambda: re.search(pattern, instance.log.read_text()), why=instance.log.read_text)


def test_items_arrive_in_order_and_limits_hold(job: RoleJob):
    """Items of one producer stay in their order; a full queue and an empty one raise after their timeout, or at once."""
    owner = job.start(OWNER + "got = [queue.get(30)['n'] for _ in range(10)]\nprint(got, queue.qsize())" + WAIT, "trainer")
    producer = job.start(USER + "for n in range(10):\n    queue.put({'n': n}, timeout=30)\nprint('done')", "rollout", 0)
    producer.finish()
    line(owner, r"\[0, 1, 2, 3, 4, 5, 6, 7, 8, 9\] 0")

    job.start(
        USER
        + """
for act, error in ((queue.get_nowait, stdlib.Empty), (lambda: queue.get(0.2), QueueEmptyError)):
    try:
        act()
    except error as found:
        assert "queue samples: no item arrived within" in str(found)
    else:
        raise AssertionError(act)
for n in range(3):
    queue.put_nowait((n,))
for act, error in ((lambda: queue.put_nowait(4), stdlib.Full), (lambda: queue.put(4, 0.2), QueueFullError)):
    try:
        act()
    except error as found:
        assert "had no free place within the timeout" in str(found)
    else:
        raise AssertionError(act)
assert queue.qsize() == 3
assert queue.get_batch(2) + queue.get_batch(5) == [(0,), (1,), (2,)]
""",
        "rollout",
        1,
    ).finish()


def test_get_waits_for_an_item_and_a_dead_receiver_loses_none(job: RoleJob):
    """A consumer that is killed while it waits gets no item; a stopped one that is killed returns its item to the front."""
    owner = job.start(OWNER + "import sys\nqueue.qsize()\n" + WAIT, "trainer")
    waiting = job.start(USER + "print('waits', flush=True)\nqueue.get(600)\n", "rollout", 0)
    line(waiting, "waits")
    other = job.start(USER + "print('waits', flush=True)\nprint('item', queue.get(600))\n", "rollout", 1)
    line(other, "waits")
    waiting.kill()
    job.start(USER + "queue.put(5)", "rollout", 0, incarnation=1).finish()
    assert "item 5" in other.finish()

    stopped = job.start(USER + "print('waits', flush=True)\nqueue.get(600)\n", "rollout", 0, incarnation=2)
    line(stopped, "waits")
    _until_it_waits_for_the_owner(stopped)
    stopped.signal(signal.SIGSTOP)
    job.start(USER + "queue.put('precious')\nprint(queue.qsize())", "rollout", 1, incarnation=1).finish()
    stopped.kill()
    last = job.start(USER + "print('item', queue.get(600))", "rollout", 1, incarnation=2)

    assert "item precious" in last.finish()
    assert owner.process.poll() is None


def _until_it_waits_for_the_owner(instance: Instance) -> None:
    """Wait until the process waits for a socket; some kernels do not say what a process waits for."""
    path = Path(f"/proc/{instance.process.pid}/wchan")
    eventually(lambda: path.read_text() in {"", "0"} or "poll" in path.read_text(), why=path.read_text)


def test_a_restarted_owner_raises_restarted_once(job: RoleJob):
    """The items are lost and each user learns it; then the queue works again."""
    owner = job.start(OWNER + WAIT, "trainer")
    user = job.start(
        USER
        + """
queue.put(1)
print("put", flush=True)
until("restarted")
try:
    queue.put(2)
except Restarted as error:
    assert error.incarnation == 1
assert queue.qsize() == 0
queue.put(3)
print("item", queue.get())
""",
        "rollout",
        0,
    )
    line(user, "put")
    owner.kill()
    job.start(OWNER + WAIT, "trainer", incarnation=1)
    (job.folder / "restarted").touch()

    assert "item 3" in user.finish()


def test_get_ends_when_the_owner_is_restarted(job: RoleJob):
    """A consumer that waits for an item does not wait for the old owner."""
    owner = job.start(OWNER + WAIT, "trainer")
    user = job.start(
        USER
        + """
print("qsize", queue.qsize(), flush=True)
try:
    queue.get(600)
except Restarted as error:
    print("incarnation", error.incarnation)
""",
        "rollout",
        0,
    )
    line(user, "qsize 0")
    owner.kill()
    job.start(OWNER + WAIT, "trainer", incarnation=1)

    assert "incarnation 1" in user.finish()
