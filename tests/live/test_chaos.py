"""A short part of the chaos soak (tests/soak/chaos.py), with a fixed seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.live.agent_processes import ROOT
from tests.waiting import PATIENCE


@pytest.mark.extended
@pytest.mark.timeout(180 * PATIENCE)
def test_random_faults_cost_no_bit() -> None:
    """Three jobs of four faults end with the weights of the undisturbed run, or as budgets say."""
    command = [
        sys.executable,
        "-m",
        "tests.soak.chaos",
        "--faults",
        "12",
        "--seed",
        "7",
        "--per-job",
        "5",
        "--steps",
        "150",
    ]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout
