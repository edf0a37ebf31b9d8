"""A DDP script that releases its process group while one of its collectives still waits for the other rank.

The thread of the group that ends this collective needs the GIL to release the tensor, and the destructor of the group waits
for that thread. Rank 1 enters the collective half a second after rank 0 has begun to release the group.

`pending.py FOLDER [KILLS]`: rank 1 kills itself in each of the first KILLS rounds, once the file `kill` is there.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # before the group exists: else default arguments in torch.distributed.nn keep it for ever
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

FOLDER, KILLS = Path(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
RANK, ROUND = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
KEPT = torch.ones(1)


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    while not path.exists():
        time.sleep(0.02)


def main() -> None:
    """Train one step, then leave the group with a collective under way."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    if RANK == 1 and ROUND < KILLS:
        wait_for(FOLDER / "kill")
        os.kill(os.getpid(), signal.SIGKILL)
    if RANK == 1:
        wait_for(FOLDER / f"released-{ROUND}")
        time.sleep(0.5)
    work = dist.all_reduce(KEPT, async_op=True)
    del work
    dist.destroy_process_group()
    (FOLDER / f"released-{ROUND}").touch()


main()
print(f"rank {RANK} is done")
