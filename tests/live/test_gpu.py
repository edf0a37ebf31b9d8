"""`make gpu`: the proof on a GPU, as far as it can be run without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.machine import Machine, tail
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]

#: What `make test` runs.
QUICK = ("errors",)
ALL = tuple(check.name for check in CHECKS)


def prove(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, object]]]:
    """Run the command; return what it said, and the results of its report by the names of the checks."""
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--report", str(report), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100 * PATIENCE,
        check=False,
    )
    results = json.loads(report.read_text())["results"] if report.exists() else []
    return done, {result["name"]: result for result in results}


@pytest.mark.parametrize("names", [QUICK, pytest.param(ALL, marks=pytest.mark.extended)], ids=["quick one", "all"])
def test_every_check_runs_without_a_gpu(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Its own code, with stand-ins that are named; the report and the exit code say that all passed."""
    chosen = () if names is ALL else [word for name in names for word in ("--only", name)]
    done, results = prove(tmp_path, "--dry", *chosen)

    assert done.returncode == 0, done.stdout + done.stderr
    assert list(results) == list(names)
    assert all(result["passed"] and result["stand_ins"] for result in results.values())
    assert done.stdout.startswith("DRY RUN: there is no GPU in this.")
    assert f"{len(names)} of {len(names)} passed" in done.stdout
    assert "stand-in: NVML" in done.stdout


@pytest.mark.extended
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


def test_the_end_of_a_worker_is_told_with_the_error_of_its_gpu(tmp_path: Path) -> None:
    """A real agent reads the XID while the worker runs, and tells it with the worker's end; of the next round it is none."""
    script, may_end = tmp_path / "train.py", tmp_path / "may-end"
    script.write_text(
        f"import os, sys, time\nwhile not os.path.exists({str(may_end)!r}): time.sleep(0.05)\nsys.exit('no device')\n"
    )
    machine, log = Machine(dry=True, folder=tmp_path), tmp_path / "agent.log"
    machine.stand_in_gpu()
    flags = ("--nproc-per-node=1", "--max-restarts=2", "--start-method=spawn")
    process = machine.start((*machine.agent, *flags, str(script)), log)
    try:
        eventually(lambda: "started the workers" in log.read_text(), why=lambda: tail(log))

        def noted() -> bool:
            # What happened before the agent has begun to watch is none of its events.
            machine.stand_in_gpu()
            machine.stand_in_gpu(xids=((0, 79),) * (len(seen) + 1))
            seen.append(79)
            return "GPU 0: XID 79 (GPU has fallen off the bus)" in log.read_text()

        seen: list[int] = []
        eventually(noted, every=0.5, why=lambda: tail(log))
        may_end.touch()
        code = process.wait(60 * PATIENCE)
    finally:
        process.kill()
        process.wait()

    ends = [line for line in log.read_text().splitlines() if "coordinator: restarting workers" in line]
    assert code != 0
    assert "exited with code 1: GPU 0: XID 79 (GPU has fallen off the bus)" in ends[0], tail(log)
    assert not any("XID" in line for line in ends[1:]), tail(log)
