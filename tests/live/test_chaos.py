"""A short part of the chaos soak (tests/soak/chaos.py), with a fixed seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.live.agent_processes import ROOT
from tests.waiting import PATIENCE


@pytest.mark.timeout(180 * PATIENCE)
def test_a_dozen_faults_cost_no_bit() -> None:
    """Three jobs are struck four times each, and end with the weights of the undisturbed run or as their budgets say."""
    command = [sys.executable, "-m", "tests.soak.chaos", "--faults", "12", "--seed", "7", "--per-job", "5", "--steps", "150"]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout
