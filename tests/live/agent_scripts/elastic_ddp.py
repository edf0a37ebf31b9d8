"""Elastic training as one writes it for torchrun: DDP, and a checkpoint to go on from. Nothing here knows of Rallypoint.

`elastic_ddp.py STEPS FOLDER`: trains until STEPS, saves every step, leaves a file for each step and world in FOLDER, and waits
at half of the way, unless it was started there, until FOLDER/go is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    steps, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = resume(folder / "checkpoint.pt", model, optimizer)
    (folder / f"started.{step}.{world}.{rank}").write_text(str(os.getpid()))
    while step < steps:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        step += 1
        if rank == 0:
            save(folder / "checkpoint.pt", model, optimizer, step)
            (folder / f"step.{step}.{world}").touch()
        while step == steps // 2 and not (folder / "go").exists():
            time.sleep(0.02)
    dist.destroy_process_group()


def resume(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    part = path.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
    part.replace(path)


if __name__ == "__main__":
    main()
