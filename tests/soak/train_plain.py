"""An ordinary DDP script, without a line of Rallypoint: it loops, reduces once, prints, destroys its group and returns.

`train_plain.py FOLDER`: the first round trains until a worker is killed, a later one makes a dozen steps.
"""

import os
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER, RANK, ROUND = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STEPS = 12 if ROUND else 1_000_000


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        if step == 2:
            (FOLDER / f"trains-{ROUND}-{RANK}").write_text(str(os.getpid()))
    dist.all_reduce(loss.detach())
    kind = "fork" if "zygote" in Path("/proc/self/cmdline").read_text() else "program"
    print(f"rank {RANK} is done in round {ROUND}: {kind}", flush=True)
    dist.destroy_process_group()


main()
