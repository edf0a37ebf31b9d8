"""Train a small network on handwritten digits with DDP, and come through a kill with the same weights, bit for bit.

    rallypoint-agent run --standalone --nproc-per-node 2 dags_examples/train_digits.py --checkpoint-dir /tmp/digits
    torchrun --standalone --nproc-per-node 2 dags_examples/train_digits.py --checkpoint-dir /tmp/digits
    python dags_examples/train_digits.py --checkpoint-dir /tmp/digits

The four things that make a training script elastic are marked (1) to (4). They work under plain torchrun and plain python
too, where `report_progress` does nothing.

The data are the 1,797 images of 8 x 8 pixels that scikit-learn bundles (UCI "Optical Recognition of Handwritten Digits").
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from rallypoint.training import (
    Checkpoints,
    ResumableSampler,
    World,
    average_in_rank_order,
    process_group,
    report_progress,
    seed_everything,
    weights_digest,
)

TEST_IMAGES = 360


def main() -> None:
    args = parse_arguments()
    # Same seed, same order of data, one thread, deterministic kernels: then the same steps give the same bits.
    seed_everything(args.seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    with process_group("gloo") as world:  # (1) the group of this round, whoever is in it
        train(args, world)


def train(args: argparse.Namespace, world: World) -> None:
    (images, labels), test = load_digits(args.seed)
    model = DistributedDataParallel(make_model())
    average_in_rank_order(model)  # for equal bits only: leave it out where close is good enough
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=args.steps)

    # (2) batch number `step` is a function of the seed, not of who reads it or how often it was interrupted
    sampler = ResumableSampler(len(images), batch_size=args.batch_size, seed=args.seed)

    # (3) take up the newest complete checkpoint, if there is one
    checkpoints = Checkpoints(args.checkpoint_dir)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    start = checkpoints.load(state) or 0

    for step in range(start, args.steps):
        began = time.monotonic()
        rows = sampler.batch(step)
        # The sum over this rank's share, scaled so that DDP's average over ranks is the mean over the global batch.
        loss = cross_entropy(model(images[rows]), labels[rows], reduction="sum") * world.world_size / args.batch_size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        report_progress(step + 1, loss=loss)  # (4) tell the agent how far this rank is
        if (step + 1) % args.checkpoint_every == 0 or step + 1 == args.steps:
            checkpoints.save(step + 1, state)
        time.sleep(max(0.0, began + args.step_seconds - time.monotonic()))

    if world.rank == 0:
        accuracy = evaluate(model, *test)
        report_progress(args.steps, accuracy=accuracy)
        result = {
            "accuracy": accuracy,
            "steps": args.steps,
            "resumed_from": start,
            "weights_sha256": weights_digest(model),
            "world_size": world.world_size,
            "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        }
        write_result(args.result or checkpoints.directory / "result.json", result)
        print(f"test accuracy {accuracy:.4f} after {args.steps} steps; this process began at step {start}", flush=True)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )


def load_digits(seed: int) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return ((images, labels) to train, (images, labels) to test); images are (n, 64) in 0..1.

    The file is read where scikit-learn keeps it: importing `sklearn.datasets` for it would cost each worker 0.8 s at every
    start and restart, reading it takes 0.04 s.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit("scikit-learn brings the data set and is not installed: pip install scikit-learn")
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = torch.tensor([[float(cell) for cell in line.split(",")] for line in file])
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))]
    images, labels = table[:, :64] / 16, table[:, 64].long()
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (images[:TEST_IMAGES], labels[:TEST_IMAGES])


@torch.no_grad()
def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of `images` that get their label, 0 to 1."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return (inner(images).argmax(dim=1) == labels).double().mean().item()


def write_result(path: Path, result: dict[str, object]) -> None:
    """Write JSON so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(path)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's handwritten digits.")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps in all (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, all ranks together (%(default)s)")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS", help="%(default)s")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: the job's, from RALLYPOINT_CHECKPOINT_DIR")
    parser.add_argument("--result", type=Path, metavar="FILE", help="default: result.json in the checkpoint folder")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="let each step take at least this long, to be watched")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="%(default)s")
    parser.add_argument("--seed", type=int, default=7, help="%(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
