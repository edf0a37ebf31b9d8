"""Plain training with epochs, an evaluation and a checkpoint after each: `phases.py FOLDER RANK`.

In its first round rank RANK is slower than the others, and waits for ever for a batch once `FOLDER/stick` is there.
It goes on until `FOLDER/enough` is there; `FOLDER/trains-ROUND` says that a round has taken 40 steps.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
first = os.environ["RALLYPOINT_ROUND"] == "1"


class Rows(TensorDataset):
    """Of which one is never read."""

    sticks = False

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if self.sticks and (folder / "stick").exists():
            time.sleep(3600)
        return super().__getitem__(index)


def train() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    bad = first and dist.get_rank() == rank
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = Rows(torch.ones(40, 4))
    rows.sticks = bad
    over, step = torch.zeros(1), 0
    while not over.item():
        model.train()
        for (batch,) in DataLoader(rows, batch_size=2):
            optimizer.zero_grad()
            loss = model(batch).sum()
            time.sleep(0.05 if bad else 0.01)
            loss.backward()
            optimizer.step()
            step += 1
        model.eval()
        for (batch,) in DataLoader(TensorDataset(torch.ones(40, 4)), batch_size=4):
            model.module(batch)
        torch.save(model.state_dict(), folder / f"model-{dist.get_rank()}.pt")
        if step >= 40 and dist.get_rank() == 0:
            (folder / f"trains-{os.environ['RALLYPOINT_ROUND']}").touch()
        over.fill_(float((folder / "enough").exists()))
        dist.all_reduce(over, dist.ReduceOp.MAX)
    dist.destroy_process_group()


train()
