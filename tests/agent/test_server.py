"""`rallypoint-agent server`: a server that ends when a file requests it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually

pytestmark = pytest.mark.live


class Host:
    """The process, and what a kubelet does to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "end"
        self.file.touch()
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, grace: str = "5", until: str = "") -> subprocess.Popen[bytes]:
        agent = [sys.executable, "-m", "rallypoint.agent", "server", "--until", until or str(self.file), "--grace", grace]
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen([*agent, "--", *command], stdout=log, stderr=log)
        self._started.append(process)
        return process

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until_said(self, text: str) -> None:
        eventually(lambda: text in self.log, why=lambda: self.log)

    def request(self) -> None:
        partial = self.folder / "partial"
        partial.write_text("drivers-succeeded")
        partial.replace(self.file)

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


LOOP = "trap 'echo saved; exit {code}' TERM; echo begins; while :; do sleep 0.05; done"


@pytest.mark.parametrize("code", [0, 7])
def test_a_requested_end_is_a_success(host: Host, code: int) -> None:
    """Whatever the exit code of the server: its pod must succeed."""
    process = host.start("sh", "-c", LOOP.format(code=code))
    host.until_said("begins")
    host.request()

    assert process.wait(30) == 0
    assert "saved" in host.log
    assert f"the server exited with code {code}" in host.log


def test_a_server_that_ignores_sigterm_is_killed_after_its_grace(host: Host) -> None:
    """With everything that it started, also what left its process group."""
    command = "trap '' TERM; setsid sleep 600 & echo child $!; echo begins; while :; do sleep 0.05; done"
    process = host.start("sh", "-c", command, grace="0.5")
    host.until_said("begins")
    child = int(host.log.split("child ")[1].split()[0])
    host.request()
    began = time.monotonic()

    assert process.wait(30) == 0
    assert time.monotonic() - began > 0.5
    assert "the server was killed by SIGKILL" in host.log
    eventually(lambda: not _runs(child), why="its child should be gone")


def test_a_server_is_not_started_after_the_request(host: Host) -> None:
    """A pod that replaces another one late ends at once."""
    host.request()

    assert host.start("sh", "-c", "echo begins").wait(30) == 0
    assert "begins" not in host.log


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", 137)])
def test_a_server_that_ends_by_itself_keeps_its_exit_code(host: Host, command: str, code: int) -> None:
    """Kubernetes restarts one that failed."""
    assert host.start("sh", "-c", command).wait(30) == code


def test_a_signal_to_the_pod_is_no_success(host: Host) -> None:
    """The server ends well on SIGTERM, but the drivers still need it."""
    process = host.start("sh", "-c", LOOP.format(code=0))
    host.until_said("begins")
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 128 + signal.SIGTERM
    assert "saved" in host.log


def test_a_signal_after_the_request_changes_nothing(host: Host) -> None:
    """A node that is drained while the servers end counts as a success."""
    process = host.start("sh", "-c", "trap 'sleep 1; exit 0' TERM; echo begins; while :; do sleep 0.05; done")
    host.until_said("begins")
    host.request()
    host.until_said("sending SIGTERM")
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0


def test_a_file_that_comes_later(host: Host) -> None:
    """The server runs while there is none, and ends when one with a content is there."""
    late = host.folder / "volume" / "end"
    process = host.start("sh", "-c", LOOP.format(code=0), until=str(late))
    host.until_said("begins")
    late.parent.mkdir()
    late.write_text("x")

    assert process.wait(30) == 0


def test_a_command_that_cannot_be_started(host: Host) -> None:
    """The exit code is that of a shell, and one line says why."""
    assert host.start("/no/such/program").wait(30) == 127
    assert "cannot start the server: [Errno 2] No such file or directory: '/no/such/program'" in host.log


@pytest.mark.parametrize("grace", ["nan", "-1", "inf", "soon"])
def test_a_grace_that_is_no_time(host: Host, grace: str) -> None:
    """It is refused before anything starts."""
    assert host.start("true", grace=grace).wait(30) == 2
    assert f"{grace!r} is not allowed; expected a number of seconds, 0 or more" in host.log


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
