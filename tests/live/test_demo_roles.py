"""The demo of a job with roles: it learns, and only what was killed is started again."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.extended
@pytest.mark.parametrize("killed", [("rollout/1", "trainer/1"), ("evaluator/0", "trainer/0")], ids="-".join)
def test_the_demo_learns_through_both_kills(tmp_path, killed):
    """The job reaches its score within two minutes, also if the owner of the queue is killed; the picture is there."""
    command = [sys.executable, "-m", "dags_examples.demo_roles", "--folder", str(tmp_path / "demo"), "--kill", *killed]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)

    assert done.returncode == 0, done.stdout + done.stderr
    for text in (*(f"{name} killed with SIGKILL" for name in killed), "yes  only the killed processes"):
        assert text in done.stdout
    assert (tmp_path / "demo" / "timeline.png").stat().st_size > 10_000
