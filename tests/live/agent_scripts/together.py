"""A worker whose steps need every rank of its world, as a collective does: `together.py FOLDER`. It imports no torch.

A step is begun by a byte in `FOLDER/steps/ROUND.RANK`, and done when each rank of the world has begun it, too; then a line
follows in `FOLDER/done`: round, rank, step. It ends with 0 when `FOLDER/finish` is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
rank, world, round_ = os.environ["RANK"], int(os.environ["WORLD_SIZE"]), os.environ["RALLYPOINT_ROUND"]
steps = folder / "steps"
steps.mkdir(exist_ok=True)
(folder / "started").mkdir(exist_ok=True)
(folder / "started" / f".{round_}.{rank}").write_text(str(os.getpid()))
(folder / "started" / f".{round_}.{rank}").rename(folder / "started" / f"{round_}.{rank}")


def begun(of: int) -> int:
    """Return how many steps a rank of this round has begun."""
    try:
        return (steps / f"{round_}.{of}").stat().st_size
    except FileNotFoundError:
        return 0


with (steps / f"{round_}.{rank}").open("ab", buffering=0) as own, (folder / "done").open("ab", buffering=0) as done:
    step = 0
    while not (folder / "finish").exists():
        if step == begun(int(rank)):
            own.write(b".")
        if all(begun(of) > step for of in range(world)):
            done.write(f"{round_} {rank} {step}\n".encode())
            step += 1
        time.sleep(0.01)
