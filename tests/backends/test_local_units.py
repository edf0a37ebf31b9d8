"""What a script may write into the folder of its job, and what the units of the job make of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.backends.contract import Blueprint
from rallypoint.backends.local import proc
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.units import _lives, ring
from rallypoint.job import load_job
from rallypoint.wire import codec
from rallypoint.wire.role_plans import RolePlan, role_plan
from rallypoint.wire.unit_files import HostReady

ROLES = {"rollout": RolePlan(name="rollout", elastic=False, total=2)}


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no host; the signal for hosts would end it."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def ready(folder: JobFolder, pid: int) -> None:
    host = folder.host("rollout-0", 1)
    host.path.mkdir(parents=True)
    named = HostReady(pid=pid, start_ticks=proc.start_ticks(pid) or 0, boot_id=proc.boot_id())
    (host.path / "host.json").write_text(codec.dumps(named))


def test_a_process_of_another_user_gets_no_signal(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    """The file with the host's number is the job's to write: only a process of the job's user is sent anything."""
    folder = JobFolder(path=tmp_path / "rl")
    ready(folder, stranger.pid)

    ring(folder.host("rollout-0", 1), os.geteuid() + 1)
    assert stranger.poll() is None
    ring(folder.host("rollout-0", 1), os.geteuid())
    assert stranger.wait(timeout=60) == -signal.SIGUSR2


def test_folders_of_lives_are_no_links(tmp_path: Path) -> None:
    """A life in a linked folder is none, so nothing is written there; nor is one whose name means nothing."""
    folder = JobFolder(path=tmp_path / "rl")
    host = folder.host("rollout-0", 1)
    elsewhere = tmp_path / "elsewhere" / "1.0.1"
    elsewhere.mkdir(parents=True)
    (elsewhere / "start.json").write_text("{}")
    for name in ("rollout-0/1.0.1", "rollout-0/1.0", "rollout-x/1.0.1", "critic-0/1.0.1"):
        (host.path / "units" / name).mkdir(parents=True)
        (host.path / "units" / name / "start.json").write_text("{}")
    (host.path / "units" / "rollout-1").symlink_to(elsewhere.parent)

    assert [(key.role, key.index, path.name) for key, path in _lives(host, ROLES)] == [("rollout", 0, "1.0.1")]


@pytest.mark.extended
def test_an_elastic_role_of_a_large_job_is_drawn(home: Path) -> None:
    """Its job file has more keys and values than a file of a user may have."""
    trainer = {"entrypoint": "train.py", "nodes": 1, "env": {f"A{number}": "" for number in range(15_000)}}
    actor = {"launch": "simple", "entrypoint": "act.py", "total": 1}
    for script in ("train.py", "act.py"):
        (home.parent / script).write_text("")
    job = load_job({"name": "large", "roles": {"trainer": trainer, "actor": actor}}, base=home.parent)

    async def drawn() -> Blueprint:
        backend = LocalBackend(home)
        stored = await backend.submit(backend.plan(job), owner="ann")
        return await backend.units("large").blueprint(stored.record, stored.plan, role_plan(stored.plan, "trainer"))

    assert len(asyncio.run(drawn()).plan.env) >= 15_000
