"""`make gpu`: the proof on a GPU, as far as it can be run without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.checks import CHECKS
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def prove(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, object]]]:
    """Run the command; return what it said, and the results of its report by the names of the checks."""
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--report", str(report), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100 * PATIENCE,
        check=False,
    )
    results = json.loads(report.read_text())["results"] if report.exists() else []
    return done, {result["name"]: result for result in results}


def test_every_check_runs_without_a_gpu(tmp_path: Path) -> None:
    """Its own code, with stand-ins that are named; the report and the exit code say that all passed."""
    done, results = prove(tmp_path, "--dry")

    assert done.returncode == 0, done.stdout + done.stderr
    assert list(results) == [check.name for check in CHECKS]
    assert all(result["passed"] and result["stand_ins"] for result in results.values())
    assert done.stdout.startswith("DRY RUN: there is no GPU in this.")
    assert f"{len(CHECKS)} of {len(CHECKS)} passed" in done.stdout
    assert "stand-in: NVML" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    """Nothing is run, and nothing passes by accident."""
    done, results = prove(tmp_path)

    assert (done.returncode, results) == (2, {})
    assert re.search(r"no CUDA device was found: torch \S+, built for CUDA .+ make gpu DRY=1", done.stderr)


def test_a_check_that_hangs_is_ended_and_has_failed(tmp_path: Path) -> None:
    """With all that it has started: the fixture of live tests looks for what is left."""
    done, results = prove(tmp_path, "--dry", "--only", "mismatched collective", "--limit", "4")

    assert done.returncode == 1, done.stdout + done.stderr
    assert not results["mismatched collective"]["passed"]
    assert "the check did not end within 4 s" in str(results["mismatched collective"]["sentence"])
    assert "failed: mismatched collective" in done.stdout


def test_the_limits_of_the_checks_leave_time_for_all_of_them() -> None:
    """Nine minutes, and half a minute of them for the start and the end."""
    assert sum(check.limit for check in CHECKS) <= 8.5 * 60
