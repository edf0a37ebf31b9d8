"""Worlds of a few real processes on one machine, met on a store that the test serves, as an agent would."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but torch lists it by dir()

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def python(*args, environ=None):
    """Start `python ARGS` in the repository's root, warnings as errors; both outputs go to its `stdout`."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", *map(str, args)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, timeout=60.0):
    """Return what the process printed; fails unless it ends with 0."""
    output, _ = process.communicate(timeout=timeout * PATIENCE)
    assert process.returncode == 0, output
    return output


def kill(process):
    """End it as a fault does."""
    process.kill()
    process.communicate()


def run_world(size, script, *args):
    """Run `script` as every rank of a world of `size` and return the outputs by rank."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=10))
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(size),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    ranks = [python("-c", script, *args, environ={**common, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(size)]
    try:
        return [finish(process) for process in ranks]
    finally:
        for process in ranks:
            kill(process)
