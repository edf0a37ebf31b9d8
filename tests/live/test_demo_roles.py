"""The demo of a job with roles: it learns, and only what was killed is started again."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.extended
def test_the_demo_learns_through_both_kills(tmp_path):
    """The job reaches its score within two minutes; the timeline and the picture are there."""
    command = [sys.executable, "-m", "dags_examples.demo_roles", "--folder", str(tmp_path / "demo")]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)

    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("rollout/1 killed with SIGKILL", "trainer/1 killed with SIGKILL", "yes  only the killed processes"):
        assert text in done.stdout
    assert (tmp_path / "demo" / "timeline.png").stat().st_size > 10_000
