"""Train with DDP and recover from faults without importing anything of Rallypoint.

    rallypoint-agent run --standalone --nproc-per-node 2 dags_examples/train_plain.py --checkpoint /tmp/plain.pt
    torchrun --standalone --nproc-per-node 2 dags_examples/train_plain.py --checkpoint /tmp/plain.pt

All it takes is what torchrun asks of a script too: form the group from the environment, and when started, go on from the
last checkpoint. Rank 0 writes it beside and renames it, so that a kill never leaves half of one.

The task is a made-up regression: find the eight weights that made the noisy data.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, targets = make_data()
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    start = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    print(f"rank {rank} of {world_size} begins at step {start}", flush=True)

    loss = torch.tensor(float("nan"))
    for step in range(start, args.steps):
        began = time.monotonic()
        rows = batch(step, len(inputs))[rank::world_size]
        loss = (model(inputs[rows]) - targets[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % args.checkpoint_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            replace(args.checkpoint, partial(torch.save, state))
        time.sleep(max(0.0, began + args.step_seconds - time.monotonic()))

    if rank == 0 and args.result is not None:
        result = {
            "steps": args.steps,
            "resumed_from": start,
            "loss": loss.item(),
            "world_size": world_size,
            "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        }
        replace(args.result, lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (512, 8) and targets (512, 1), the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 8, generator=generator)
    truth = torch.randn(8, 1, generator=generator)
    return inputs, inputs @ truth + 0.1 * torch.randn(512, 1, generator=generator)


def batch(step: int, samples: int) -> list[int]:
    """Return the 32 samples of a step, the same in every run."""
    drawn: list[int] = torch.randint(samples, (32,), generator=torch.Generator().manual_seed(step)).tolist()
    return drawn


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    temporary.replace(path)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fit a made-up regression; checkpoint and recover with torch alone.")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all (%(default)s)")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS", help="%(default)s")
    parser.add_argument("--result", type=Path, metavar="FILE", help="where rank 0 writes how it ended, as JSON")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="let each step take at least this long, to be watched")
    return parser.parse_args()


if __name__ == "__main__":
    main()
