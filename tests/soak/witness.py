"""A training in miniature that notices when somebody else is the same rank: `witness.py STEPS SECONDS_PER_STEP`.

Each rank holds a lock while it trains. Whoever finds it taken waits a little, because a killed process may still be going, and
then writes to the file `duplicates`; so does rank 0 when somebody else has written its checkpoint. It imports no torch.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

from rallypoint.training import report_progress

#: Seconds that a killed process may take to let its lock go.
_PATIENCE = 10.0

steps, pause = int(sys.argv[1]), float(sys.argv[2])
rank, round_ = int(os.environ["RANK"]), os.environ["RALLYPOINT_ROUND"]
folder = Path(os.environ["RALLYPOINT_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)


def accuse(what: str) -> None:
    """Write down what must not be."""
    with (folder / "duplicates").open("a") as file:
        file.write(f"rank {rank}, round {round_}, pid {os.getpid()}: {what}\n")


def be_alone() -> int:
    """Take this rank's lock, and keep it for life."""
    lock = os.open(folder / f"rank-{rank}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                accuse("somebody else is this rank")
                return lock
            time.sleep(0.02)
        else:
            return lock


lock = be_alone()
checkpoint = folder / "step"
start = int(checkpoint.read_text()) if checkpoint.exists() else 0
for step in range(start + 1, steps + 1):
    time.sleep(pause)
    if rank == 0:
        if checkpoint.exists() and int(checkpoint.read_text()) != step - 1:
            accuse(f"step {step - 1} was mine, but the checkpoint says {checkpoint.read_text()}")
        temporary = folder / f".step-{os.getpid()}"
        temporary.write_text(str(step))
        temporary.replace(checkpoint)
    report_progress(step, resumed_from=start, checkpoint=str(checkpoint))
