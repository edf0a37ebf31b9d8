"""What a person at the terminal of `rallypoint-agent run` reads of a hang, and what stays of it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest

from tests.live.agent_processes import agents, said
from tests.optional import needs
from tests.waiting import PATIENCE

needs("torch")

SCRIPTS = Path(__file__).parent / "scripts"
ALL_STACKS = re.compile(r"saved the stacks of all workers for each hang: hangs=\d+ file=(\S+)")


@pytest.mark.extended
def test_a_run_that_succeeds_has_no_line_about_a_hang(tmp_path: Path) -> None:
    """Ranks that wait for a child process, and that have left their world and clean up, for longer than the learned bound."""
    with agents(tmp_path, torch=True) as job:
        run = job.run("--nproc-per-node", 2, "--hang-detection", 2, "--max-restarts", 3, SCRIPTS / "quiet_end.py", 6)
        code, output = said(run, timeout=180.0)

    assert (code, output.count("done\n")) == (0, 2), output
    assert "hang" not in output
    assert "looked into" not in output
    assert "round 2" not in output


@pytest.mark.extended
def test_the_evidence_of_a_hang_survives_the_run(tmp_path: Path) -> None:
    """Without `--log-dir`: the folder is temporary, the file stays, and the last lines say where it is."""
    with agents(tmp_path, torch=True) as job:
        names = ("--nproc-per-node", 2, "--hang-detection", 1, SCRIPTS / "hang_ways.py", job.work, "deadlock", 60)
        run = job.run(*names)
        late = threading.Timer(240.0 * PATIENCE, run.kill)
        late.start()
        assert run.stdout is not None
        before = list(itertools.takewhile(lambda line: "rallypoint.coordinator: hang detected: " not in line, run.stdout))
        os.kill(run.pid, signal.SIGTERM)
        _code, after = said(run)
        late.cancel()
    told = ALL_STACKS.search(after)
    assert told is not None, "".join(before) + after
    path = Path(told[1])

    try:
        found = sorted(path.rglob("hang-*.txt")) if path.is_dir() else [path]
        assert found
        assert "group 0 of ranks 0 to 1" in found[-1].read_text()
        assert "in deadlock" in found[-1].read_text()
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove the folder of a run, which is in the system's folder for temporary files."""
    folder = path if path.is_dir() else path.parent.parent
    shutil.rmtree(folder)
