"""Train one small state, a step at a time; what is left of it after a death is written to WORK/resumed.<round>.

remember.py WORK STEPS lines|helper: three lines of Snapshots, or the checkpoint helper alone, which saves every 10 steps.
Step `n` of round 1 is the last one before WORK/die.<n> lets rank 0 kill itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed as dist

from rallypoint.training import Checkpoints, Snapshots, process_group, report_progress, weights_digest

EVERY = 10


def main(work: Path, steps: int, how: str) -> None:
    """Train, and say what the first step of each round began with."""
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    with process_group() as world:
        checkpoints = Checkpoints(work / "storage")
        snapshots = Snapshots(state, storage=work / "storage") if how == "lines" else None
        first = (checkpoints.load(state) if snapshots is None else snapshots.load()) or 0
        if world.rank == 0:
            told = f"{first} {weights_digest(model)}"
            (work / "memory").write_text(os.environ["RALLYPOINT_SNAPSHOT_DIR"])
            (work / f"resumed.{os.environ['RALLYPOINT_ROUND']}").write_text(told)
        for step in range(first + 1, steps + 1):
            optimizer.zero_grad()
            model(torch.full((4, 16), step / 7)).square().mean().backward()
            if world.world_size > 1:  # as under DDP, no rank is a step ahead of what all have given
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            if snapshots is not None:
                snapshots.save(step)
            report_progress(step)
            if step % EVERY == 0 and snapshots is None:
                checkpoints.save(step, state)
            if world.rank == 0:
                (work / f"digest.{step}").write_text(weights_digest(model))
                if (work / f"die.{step}").exists():
                    (work / f"die.{step}").unlink()
                    if snapshots is not None:
                        snapshots.wait()
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
