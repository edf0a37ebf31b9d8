"""Small parts of the local backend: files that change in one step, threads, facts about processes, the registry."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import durable, proc
from rallypoint.backends.registry import default_home, open_backend
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.wire.env import HOME, JOB_MARK
from tests.waiting import eventually, eventually_async

ROOT = Path(__file__).parents[2]


def test_a_file_is_replaced_whole(tmp_path):
    """Also by a shorter text, and where room was taken ahead."""
    path = str(tmp_path / "file")
    durable.reserve(path, 4096)

    durable.write_text(path, "a long text\n")
    durable.write_text(path, "short\n")

    assert (tmp_path / "file").read_text() == "short\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_replaced_stays(tmp_path):
    """And nothing is left beside it."""
    (tmp_path / "file" / "inside").mkdir(parents=True)

    with pytest.raises(OSError, match="directory"):
        durable.write_text(str(tmp_path / "file"), "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_lock_is_held_by_one(tmp_path):
    """Until its descriptor is closed."""
    path = str(tmp_path / "lock")
    first = durable.try_lock(path)
    assert first is not None
    assert durable.try_lock(path) is None

    os.close(first)

    again = durable.try_lock(path)
    assert again is not None
    os.close(again)


async def test_who_is_cancelled_waits_for_its_thread():
    """Nothing goes on behind the back of whoever comes next."""
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go_on.wait()
        done.append("done")
        raise ValueError("nobody is left to hear of this")

    task = asyncio.ensure_future(in_thread(work))
    await eventually_async(begun.is_set)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["done"]


def test_processes_are_found_by_their_mark_and_nothing_else():
    """The whole mark: one that only begins alike is another's. A zombie runs no more."""
    alike = [subprocess.Popen(["sleep", "60"], env={JOB_MARK: mark}) for mark in ("u/1/0/1", "u/1/0/10")]
    try:
        eventually(lambda: proc.marked("u/1/0/1") == [alike[0].pid])
        assert proc.start_ticks(alike[0].pid) is not None
        assert {process.pid for process in alike} <= set(proc.children())

        assert proc.send_to_marked("u/1/0/1", signal.SIGKILL, user=os.geteuid()) == 1
        eventually(lambda: proc.start_ticks(alike[0].pid) is None)
        assert proc.marked("u/1/0/1") == []
        assert proc.marked("u/1/0/10") == [alike[1].pid]
    finally:
        for process in alike:
            process.kill()
            process.wait()


def test_the_shim_needs_nothing_but_the_standard_library():
    """Isolated, without site: it starts quickly, and nothing that happens to an environment can reach it."""
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); import rallypoint.backends.local.shim;"
        "print([n for n in sys.modules if n.split('.')[0] not in sys.stdlib_module_names and not n.startswith('rallypoint')]);"
        "print(sorted(n for n in sys.modules if n.startswith('rallypoint')));"
        "print([n for n in ('asyncio', 'dataclasses', 'logging', 'pathlib', 'subprocess', 'typing') if n in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout

    foreign, ours, slow = said.splitlines()
    assert foreign == "['__main__']"
    assert "contract" not in ours
    assert slow == "[]"


def test_the_local_backend_is_the_default(home):
    """Its home is the one of the environment."""
    assert open_backend().name == "local"
    assert default_home() == home


def test_without_a_variable_the_home_is_the_users(monkeypatch, tmp_path):
    """`~/.rallypoint`, also where the variable is set but empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(HOME, "")

    assert default_home() == tmp_path / ".rallypoint"


def test_a_backend_that_there_is_not():
    """The error lists those that there are."""
    with pytest.raises(
        BackendError,
        match="backend: 'slurm' is not allowed; expected one of kubernetes, local",
    ):
        open_backend("slurm")
