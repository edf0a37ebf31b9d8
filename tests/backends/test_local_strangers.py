"""Processes of other users that carry the mark of a job of root: its parts are in command lines that every user can read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.backends.local import proc
from rallypoint.backends.local.layout import JobFolder
from rallypoint.wire.env import JOB_MARK
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can read the environment of others")

MARK, STRANGER = "0123/1/0/1", 65534

#: Protects its memory (PR_SET_DUMPABLE), so that /proc shows root as its owner.
HIDDEN = (
    f"import ctypes, os, time; os.setuid({STRANGER}); ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); "
    "print(flush=True); time.sleep(600)"
)


@pytest.fixture(params=["plain", "hidden", "set-user-ID"])
def stranger(request, tmp_path):
    """Start a process of another user with the mark of a node."""
    command, user = ["sleep", "600"], STRANGER
    if request.param == "hidden":
        command, user = [sys.executable, "-I", "-S", "-c", HIDDEN], 0
    elif request.param == "set-user-ID":
        command = [set_user_id_program()]
    with subprocess.Popen(
        command,
        user=user,
        env={JOB_MARK: MARK},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        if request.param == "hidden":
            assert process.stdout is not None
            process.stdout.readline()
        # For a moment after exec the kernel shows no environment.
        eventually(lambda: process.pid in proc.marked(MARK))
        yield process
        process.kill()


def set_user_id_program() -> str:
    """Return a program that runs as root for each user, and waits for its input."""
    path = Path("/usr/bin/su")
    if not path.exists() or not path.stat().st_mode & 0o4000:
        pytest.skip("the set-user-ID program su is not installed")
    return str(path)


def test_a_node_ends_while_a_stranger_has_its_mark(tmp_path, stranger):
    """Fails if the shim kills, and waits for, processes of other users: then any user could keep a node from ending."""
    folder = JobFolder(path=tmp_path / "job")
    node = folder.node(0, 1, 1)
    node.path.parents[1].mkdir(parents=True)
    folder.record.write_text(json.dumps({"uid": "0123", "attempt": 1, "phase": "Running", "deletion": False}))

    node.start(["true"], record=folder.record, attempt=1, mark=MARK, environment=os.environ)

    eventually((node.path / "exit.json").exists, why="the node should end")
    shim = node.shim()
    eventually(lambda: shim is not None and not shim.alive())
    assert json.loads((node.path / "exit.json").read_text())["exit_code"] == 0
    assert stranger.poll() is None


def test_no_process_of_a_stranger_is_left_of_a_job_of_root(stranger):
    """Fails if supervisors wait for processes of other users: then any user could keep a deleted job from ending."""
    assert proc.owner(stranger.pid) != os.geteuid()
    assert proc.kill_job("0123", spare="no-shim", user=os.geteuid()) == 0
    assert proc.send_to_marked(MARK, signal.SIGKILL, user=os.geteuid()) == 0
    assert stranger.poll() is None
