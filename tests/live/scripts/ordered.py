"""A worker that does as it is told at step boundaries: `ordered.py FOLDER`. Endless; DDP on gloo, a state with a counter.

It tells its process number in `FOLDER/pid.RANK`, and what it saves in `FOLDER/saved.RANK`: its step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

from rallypoint import training

folder = Path(sys.argv[1])
world = training.init_process_group("gloo")
(folder / f"pid.{world.rank}").write_text(str(os.getpid()))
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
state = training.State(model=model, optimizer=optimizer, step=0)
state.on_save(lambda: (folder / f"saved.{world.rank}").write_text(str(state.step)))


@training.elastic
def train(state: training.State) -> None:
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        state.step += 1
        state.commit()


train(state)
