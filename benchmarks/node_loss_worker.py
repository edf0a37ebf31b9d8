"""The script that all launchers run when nodes come and go: plain PyTorch, one rank per node, for ever.

A small network trains with DDP over gloo. Each process writes down when its first step was done (wall clock of this machine),
and in a world of which size.
"""

import json
import os
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
told = False
while True:
    time.sleep(0.017)
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    if not told:
        at = time.time()
        mark = {"at": at, "world": dist.get_world_size(), "rank": dist.get_rank()}
        (Path(os.environ["BENCH_RUN"]) / f"{at:.6f}-{os.getpid()}.json").write_text(json.dumps(mark))
        told = True
