"""The script that all launchers run while a node joins: plain PyTorch, one rank per node, for ever.

A small network trains with DDP over gloo. Each process appends one line per optimizer step to a file of its own: the wall
clock, the size of the world and its agent's number. After the first step it leaves the mark that `benchmarks.node_loss` needs.
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
folder, world, rank = Path(os.environ["BENCH_RUN"]), dist.get_world_size(), dist.get_rank()
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
told = False
with (folder / f"{os.getpid()}.steps").open("w", buffering=1) as steps:
    while True:
        time.sleep(0.017)
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        at = time.time()
        steps.write(f"{at:.6f} {world} {os.environ['BENCH_AGENT']}\n")
        if not told:
            mark = {"at": at, "world": world, "rank": rank}
            (folder / f"{at:.6f}-{os.getpid()}.json").write_text(json.dumps(mark))
            told = True
