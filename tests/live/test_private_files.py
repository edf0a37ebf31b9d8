"""What a job leaves on a machine that several people use: nobody but its owner may read it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest

from tests.live.jobs import Job, cli

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("light")]

SECRET = "canary-env-77aa"


def open_to_others(*folders):
    """Return what group or others have a right to, links aside."""
    found = []
    for folder in folders:
        for root, _, names in os.walk(folder):
            for path in (Path(root), *(Path(root, name) for name in names)):
                with contextlib.suppress(FileNotFoundError):  # a file that is being replaced
                    mode = path.lstat().st_mode
                    if mode & 0o077 and not stat.S_ISLNK(mode):
                        found.append(f"{stat.filemode(mode)} {path}")
    return found


@pytest.mark.parametrize("before", [False, True], ids=["a new home", "a home of an earlier version"])
def test_the_files_of_a_job_are_its_owners_alone(tmp_path, home, before):
    """Its environment, plan, token, output and supervisors, while it runs and after; a usual umask would open them."""
    if before:
        for name in ("jobs", "supervisors"):
            (home / name).mkdir(parents=True)
            (home / name).chmod(0o755)
    usual = os.umask(0o022)
    try:
        env = {"API_TOKEN": SECRET}
        job = Job.write(tmp_path, home, 3, 0.01, endless=True, nproc_per_node=2, env=env, name="private")
        job.name = "private"
        submitted = cli("submit", tmp_path / "job.json")
        job.trains(ranks=2)
        folders = (home / "jobs", home / "supervisors")
        assert open_to_others(*folders) == []
        job.may_end()
        job.ends()
    finally:
        os.umask(usual)

    assert open_to_others(*folders) == []
    assert before or not home.stat().st_mode & 0o077
    assert "warning: env: 'API_TOKEN' looks like a credential" in submitted.stderr
    assert SECRET not in submitted.stderr + submitted.stdout
