"""Plain training that is silent for a while at its end: `quiet_end.py SECONDS`."""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from torch import distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
if dist.get_rank() == 1:
    subprocess.run(["sleep", sys.argv[1]], check=True)
dist.barrier()
dist.destroy_process_group()
print("done", flush=True)
time.sleep(float(sys.argv[1]))
