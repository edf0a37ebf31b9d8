"""Plain training that knows nothing of us: `hang.py FOLDER HOW RANK` hangs at rank RANK, in its first round only.

`HOW` is sleep, busy or stop; with `late` only the first step takes long. It goes on until `FOLDER/enough` is there, and
`FOLDER/trains-ROUND` says that a round has taken twenty steps.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

folder, how, rank = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def sleeps() -> None:
    time.sleep(3600)


def burns() -> None:
    while True:
        pass


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


WAYS = {"sleep": sleeps, "busy": burns, "stop": stops}


def reduce_mean(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def train() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = os.environ["RALLYPOINT_ROUND"] == "1"
    over, step = torch.zeros(1), 0
    while not over.item():
        if how == "late" and step == 0:
            time.sleep(10)
        if step == 5 and first and how in WAYS and dist.get_rank() == rank:
            WAYS[how]()
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                reduce_mean(parameter.grad)
        optimizer.step()
        time.sleep(0.02)
        over.fill_(float((folder / "enough").exists()))
        dist.all_reduce(over, dist.ReduceOp.MAX)
        step += 1
        if step == 20 and dist.get_rank() == 0:
            (folder / f"trains-{os.environ['RALLYPOINT_ROUND']}").touch()
    dist.destroy_process_group()


train()
