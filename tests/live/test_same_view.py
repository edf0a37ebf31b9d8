"""What a script sees of its process is the same under torchrun, at its first start, and after a warm restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rallypoint.wire.exits import Exit
from tests.live.agent_processes import SCRIPTS, Agents, agents, said
from tests.live.test_zygote import children, standing_by
from tests.waiting import PATIENCE, eventually

#: Variables that differ from start to start, or from launcher to launcher, with the reason where it is not in the name.
DIFFERENT = {
    *("MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    "TORCHELASTIC_MAX_RESTARTS",  # torchrun runs without restarts here
    "MASTER_ADDR",  # the same machine, by another of its names
    "_",  # the shell's: the launcher
    "GLOO_ENABLE_STORE_V2_API",  # gloo asks the store for all addresses at once
    "PYTHONPATH",  # the start-up module is found by it
    *("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"),  # where trainers report their status
}

#: Files that the start-up module holds open: for stacks, and from the import of torch on for steps.
OURS = {"stacks", "progress"}


def same(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be the same in every start."""
    environment = {
        name: value
        for name, value in seen["environment"].items()
        if name not in DIFFERENT and not name.startswith("RALLYPOINT_")
    }
    kinds = {Path(target).name.partition("-")[0] for target in seen["descriptors"].values()} - OURS
    differs = {"random", "torch seed", "argv", "orig_argv"}
    rest = {name: value for name, value in seen.items() if name not in differs}
    return {**rest, "environment": environment, "descriptors": len(kinds), "argv": seen["argv"][0]}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def read(path: Path) -> dict[str, Any]:
    """Wait for what a script saw, and return it."""
    eventually(path.exists, timeout=60.0, why=path.name)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.extended
def test_a_script_sees_the_same_process_at_every_start(job: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs by design is listed here and in docs/guides/warm-starts.md."""
    (job.folder / "seen.py").write_text((SCRIPTS / "seen.py").read_text())
    monkeypatch.chdir(job.folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    theirs, ours = job.folder / "theirs", job.work
    theirs.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "seen.py", str(theirs)]
    plain = {**os.environ, "PYTHONPATH": job.path}
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    subprocess.run(torchrun, check=True, timeout=120 * PATIENCE, env=plain, **streams)
    run = job.run("--standalone", "--nproc-per-node", 1, "--max-restarts", 1, "seen.py", ours, "stay")
    first = read(ours / "seen-0.json")
    standing_by(run.pid, set(), 2)
    worker = next(pid for pid, command in children(run.pid).items() if "seen.py" in command)
    os.kill(worker, signal.SIGKILL)
    code, output = said(run)
    assert code == Exit.OK, output
    reference, warm = read(theirs / "seen-0.json"), read(ours / "seen-1.json")

    assert same(first) == same(warm)
    assert same(first) == same(reference)
    assert first["orig_argv"] == warm["orig_argv"]
    for name in ("random", "torch seed"):
        assert first[name] != warm[name], name
    ids = [seen["environment"]["TORCHELASTIC_RUN_ID"] for seen in (reference, first, warm)]
    assert (len(set(ids)), ids[1] == ids[2], "none" in ids) == (2, True, False)
