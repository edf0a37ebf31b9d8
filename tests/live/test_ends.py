"""How jobs end: by success, by their budget, by their owner; and what is refused before it begins."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rallypoint.supervision.record import Phase
from tests.live.jobs import Job, cli
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.usefixtures("light")


def test_a_script_that_always_fails_ends_with_its_reason(tmp_path: Path, home: Path) -> None:
    """Restarts, then a reset, then Failed: with the culprit, its first error and the last lines of its log."""
    recovery = {"max_restarts": 1}
    job = Job.write(tmp_path, home, 10, 0.01, "fail", nodes=1, nproc_per_node=2, recovery=recovery)
    done = cli("submit", job.folder / "job.json", "--watch", check=False)
    assert done.returncode == 1
    record = job.record
    assert record.phase is Phase.FAILED
    assert record.released
    assert record.attempt == 2
    assert record.verdict is not None
    culprit = record.verdict.culprit
    assert culprit is not None
    assert culprit.exit_code == 1
    assert culprit.error == "ZeroDivisionError: the loss is not a number"
    assert "about to divide" in culprit.log_tail
    assert "ZeroDivisionError: the loss is not a number" in done.stdout + done.stderr
    eventually(lambda: not job.processes(), why="the detached supervisor goes last")
    cli("delete", job.name)
    assert not job.place.exists()


@pytest.mark.extended
def test_one_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, home: Path) -> None:
    """Deletion asks, waits for the grace, and then does not ask."""
    job = Job.write(tmp_path, home, 20, 0.05, "stubborn", endless=True, nodes=1, nproc_per_node=2).submit()
    job.trains(ranks=2)
    began = time.monotonic()
    cli("delete", job.name)
    assert time.monotonic() - began > 2.0, "the grace was two seconds"
    assert not job.place.exists()
    eventually(lambda: not job.processes(), why=lambda: f"its supervisor should end, too: {job.processes()}")


@pytest.mark.extended
def test_ctrl_c_of_watch_leaves_the_job_running(tmp_path: Path, home: Path) -> None:
    """It asks nothing; the detached supervisor sees the job to its end."""
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nodes=1)
    command = [sys.executable, "-m", "rallypoint.cli.main", "submit", str(job.folder / "job.json"), "--watch"]
    told = tmp_path / "told"
    with told.open("wb") as output:
        watch = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    eventually(lambda: "  running" in told.read_text(), why=lambda: f"it should be watched: {told.read_text()}")
    watch.send_signal(signal.SIGINT)
    assert watch.wait(timeout=60 * PATIENCE) == 130, told.read_text()
    assert "Job counter continues" in told.read_text()
    job.trains(ranks=1)
    job.may_end()
    assert job.ends().phase is Phase.SUCCEEDED
    cli("delete", job.name)


@pytest.mark.extended
def test_deleting_leaves_nothing(tmp_path: Path, home: Path) -> None:
    """No process, no file, and the name is free again."""
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nodes=2, nproc_per_node=2).submit()
    job.trains(ranks=4)
    cli("delete", job.name)
    eventually(lambda: not job.processes(), why=lambda: f"its supervisor should end, too: {job.processes()}")
    assert list((home / "jobs").iterdir()) == []
    absent = cli("delete", job.name, check=False)
    assert absent.returncode == 1
    assert "counter" in absent.stderr


@pytest.mark.extended
def test_a_name_that_runs_already(tmp_path: Path, home: Path) -> None:
    """The second job of a name is refused and the first does not notice."""
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nodes=1).submit()
    job.trains(ranks=1)
    other = tmp_path / "other"
    other.mkdir()
    Job.write(other, home, 7, 0.02, nodes=1)
    refused = cli("submit", other / "job.json", check=False)
    assert refused.returncode == 1
    assert "counter" in refused.stderr
    assert job.trains(ranks=1).fence.round == 1
    cli("delete", job.name)


def free_port_taken() -> socket.socket:
    """Return a socket that listens on a port of its own."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"nodes": "2:1"}, "nodes", id="a wrong range"),
        pytest.param({"nodez": 2}, "nodez", id="an unknown field", marks=pytest.mark.extended),
        pytest.param({"entrypoint": "missing.py"}, "missing.py", id="a missing script"),
        pytest.param({"workdir": "/nowhere/at/all"}, "/nowhere/at/all", id="a missing folder", marks=pytest.mark.extended),
    ],
)
def test_a_wrong_job_is_one_clear_error(tmp_path: Path, home: Path, change: dict[str, Any], said: str) -> None:
    """The field or value is named, and nothing is left behind."""
    job = Job.write(tmp_path, home, 5, 0.01, **change)
    refused = cli("submit", job.folder / "job.json", check=False)
    assert refused.returncode in (1, 2)
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not job.place.exists()
    eventually(lambda: not job.processes(), why=lambda: f"its supervisor should end, too: {job.processes()}")


def test_a_port_in_use(tmp_path: Path, home: Path) -> None:
    """Found at submission, by the field's name."""
    with free_port_taken() as taken:
        port = taken.getsockname()[1]
        job = Job.write(tmp_path, home, 5, 0.01, rendezvous={"port": port})
        refused = cli("submit", job.folder / "job.json", check=False)
    assert refused.returncode == 1
    assert "rendezvous.port" in refused.stderr
    assert str(port) in refused.stderr
    assert not job.place.exists()


#: A namespace of its own, in which anybody may mount.
PRIVATE = ("unshare", "--user", "--map-root-user", "--mount")


def on_a_small_disk(disk: Path, *commands: str, size: str = "64k") -> subprocess.CompletedProcess[str]:
    """Run commands where `disk` is a disk of `size` bytes."""
    disk.mkdir()
    small = f"mount -t tmpfs -o size={size} tmpfs {disk}"
    if subprocess.run([*PRIVATE, "sh", "-c", small], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel lets nobody mount a small disk in a namespace")
    script = "; ".join((small, *commands))
    return subprocess.run([*PRIVATE, "sh", "-c", script], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)


def test_a_disk_for_logs_that_is_full(tmp_path: Path, home: Path) -> None:
    """Found at submission, by the field's name; nothing is left behind."""
    disk = tmp_path / "disk"
    job = Job.write(tmp_path, home, 5, 0.01, nodes=1, logs={"dir": str(disk)})
    fill = f"head -c 128k /dev/zero > {disk}/full 2>/dev/null"
    done = on_a_small_disk(disk, fill, f"{sys.executable} -m rallypoint.cli.main submit {job.folder / 'job.json'}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"logs.dir: {disk}: no space left on the disk" in done.stderr
    assert not job.place.exists()
    eventually(lambda: not job.processes(), why=lambda: f"its supervisor should end, too: {job.processes()}")


@pytest.mark.extended
def test_a_disk_for_logs_that_fills_up(tmp_path: Path, home: Path) -> None:
    """The job fails with a verdict that says so, and leaves no process behind."""
    disk = tmp_path / "disk"
    limits = {"retry_limit": 0}
    job = Job.write(tmp_path, home, 1000, 0.01, "chatty", nodes=1, logs={"dir": str(disk)}, fault_tolerance=limits)
    done = on_a_small_disk(disk, f"{sys.executable} -m rallypoint.cli.main submit {job.folder / 'job.json'} --watch")
    assert done.returncode == 1, done.stdout + done.stderr
    verdict = job.record.verdict
    assert verdict is not None
    assert "no space left on the disk of its log" in verdict.message
    eventually(lambda: not job.processes(), why="the detached supervisor goes last")


@pytest.mark.extended
def test_a_home_that_fills_up(tmp_path: Path, home: Path) -> None:
    """A job whose logs have filled the disk of everything can be deleted all the same, and leaves nothing behind."""
    disk = tmp_path / "disk"
    job = Job.write(tmp_path, home, 100_000, 0.005, "chatty", nodes=1)
    rallypoint = f"{sys.executable} -m rallypoint.cli.main --home {disk}/home"
    full = f"while head -c 4096 /dev/zero > {disk}/probe; do rm {disk}/probe; done 2>/dev/null; rm -f {disk}/probe"
    submit, delete = f"{rallypoint} submit {job.folder / 'job.json'}", f"{rallypoint} delete counter"
    done = on_a_small_disk(disk, submit, full, delete, f"ls -A {disk}/home/jobs", size="512k")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Job counter deleted" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Job counter deleted"), "nothing is listed after it"
