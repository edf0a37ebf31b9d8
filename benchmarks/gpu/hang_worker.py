"""Training that hangs once, in its first life: `hang_worker.py FOLDER kernel|collective`.

`kernel`: a kernel that never ends is started, then a collective that waits for it. `collective`: the last rank calls a
collective of another group than the rest. Each rank says in FOLDER/hung-RANK that it has come so far. The second life trains on
for some steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

FOLDER, WAY = Path(sys.argv[1]), sys.argv[2]
#: Steps before the hang: enough for the agent to know how long a step takes; and of the second life.
BEFORE, AFTER = 60, 10

on_cpu = os.environ["GPU_CHECK_DEVICE"] == "cpu"
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
device = torch.device("cpu") if on_cpu else torch.device("cuda", rank % torch.cuda.device_count())
if not on_cpu:
    torch.cuda.set_device(device)
torch.set_num_threads(1)


def endless_kernel() -> None:
    """Keep the device busy for ever, and wait for it."""
    if on_cpu:
        matrix = torch.ones(64, 64)
        while True:
            matrix = torch.mm(matrix, matrix)
    torch.cuda._sleep(1 << 62)  # noqa: SLF001  cycles; torch's own way to keep a device busy
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()


def mismatched_collective() -> None:
    """Wait in a collective that the others do not call."""
    if rank == size - 1:
        dist.all_reduce(torch.ones(1, device=device), group=other)
    else:
        dist.all_reduce(torch.ones(1, device=device))
    if not on_cpu:
        torch.cuda.synchronize()


dist.init_process_group(os.environ["GPU_CHECK_BACKEND"])
other = dist.new_group() if WAY == "collective" else None
module = nn.Linear(4, 1).to(device)
model = nn.parallel.DistributedDataParallel(module, device_ids=None if on_cpu else [device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(BEFORE if life == 0 else AFTER):
    optimizer.zero_grad()
    model(torch.ones(2, 4, device=device)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
if life == 0:
    (FOLDER / f"hung-{rank}").write_text(str(time.time()))
    {"kernel": endless_kernel, "collective": mismatched_collective}[WAY]()
dist.destroy_process_group()
