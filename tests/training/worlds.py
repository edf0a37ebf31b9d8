"""Worlds of a few real processes on one machine, met on a store that the test serves, as an agent would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but torch lists it by dir()

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]

#: Imports of torch what a script imports of it, once, and is then forked for each rank; it ends as the first that fails.
RANKS = """
import os, sys, threading
for line in sys.argv[3].splitlines():
    if line.startswith(("import torch", "from torch")):
        exec(line, {})
if "DistributedDataParallel" in sys.argv[3]:
    import torch._dynamo  # its constructor does
assert threading.active_count() == 1
folder, size, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ranks = []
for rank in range(size):
    pid = os.fork()
    if not pid:
        break
    ranks.append(pid)
else:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    sys.exit(next((abs(code) for code in codes if code), 0))
output = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT)
os.dup2(output, 1), os.dup2(output, 2)
os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
sys.argv[:] = ["-c", *sys.argv[4:]]
exec(script, {"__name__": "__main__"})
"""


def python(*args, environ=None, **options):
    """Start `python ARGS` in the repository's root, warnings as errors; both outputs go to its `stdout`."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", *map(str, args)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
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
    with tempfile.TemporaryDirectory() as folder:
        ranks = python("-c", RANKS, folder, size, script, *args, environ=common, start_new_session=True)
        try:
            ranks.wait(60.0 * PATIENCE)
            outputs = [path.read_text() for path in sorted(Path(folder).iterdir())]
            assert ranks.returncode == 0, outputs or finish(ranks)
            return outputs
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
            kill(ranks)
