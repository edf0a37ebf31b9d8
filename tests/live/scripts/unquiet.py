"""Plain training that is no hang at any time: `unquiet.py FOLDER SEED` goes on until `FOLDER/enough` is there.

Its first step is long; then steps of about 20 ms, some of them much longer, and between them evaluations, checkpoints and
stalls of the data, of all lengths up to 3 s. All ranks draw the same. `FOLDER/changes` counts the changes of phase.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
stall = 0.0


class Batches(Dataset[torch.Tensor]):
    """Batches without an end, some of which take a while."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(stall)
        return torch.ones(4)


def train() -> None:
    global stall  # noqa: PLW0603
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches: Iterator[torch.Tensor] = iter(DataLoader(Batches(), batch_size=1))
    over, step, changes = torch.zeros(1), 0, 0
    time.sleep(20.0)
    while not over.item():
        stall = chance.uniform(0.5, 3.0) if chance.random() < 0.01 else 0.0
        batch = next(batches)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(chance.uniform(0.5, 2.0) if chance.random() < 0.005 else chance.uniform(0.005, 0.03))
        if chance.random() < 0.02:
            changes += 2
            evaluate(model, chance.randrange(1, 60))
        if chance.random() < 0.01:
            changes += 2
            save(model, chance.uniform(0.0, 3.0))
        changes += 2 * (stall > 0)
        over.fill_(float((folder / "enough").exists()))
        dist.all_reduce(over, dist.ReduceOp.MAX)
        step += 1
        if step % 50 == 0 and dist.get_rank() == 0:
            (folder / "changes").write_text(f"{step} {changes}")
    dist.destroy_process_group()


def evaluate(model: nn.Module, batches: int) -> None:
    model.eval()
    with torch.no_grad():
        for _ in range(batches):
            model(torch.ones(1, 4))
            time.sleep(0.05)
    model.train()


class Slow:
    """A file that takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def write(self, data: bytes) -> int:
        time.sleep(self._seconds)
        self._seconds = 0.0
        return len(data)

    def flush(self) -> None:
        """Nothing is kept."""


def save(model: nn.Module, seconds: float) -> None:
    """Rank 0 saves slowly, the others wait for it."""
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), cast("BinaryIO", Slow(seconds)))
    dist.barrier()


torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(hours=1))
train()
