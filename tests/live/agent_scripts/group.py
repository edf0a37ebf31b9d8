"""A worker with a real process group: `group.py FOLDER KILLS`. In each of the first KILLS rounds one rank kills itself.

Each round proves that its group is whole: the sum of ones over all ranks is the size of the world.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
round_ = int(os.environ["RALLYPOINT_ROUND"])
dist.init_process_group("gloo", timeout=timedelta(minutes=30))
ones = torch.ones(1)
dist.all_reduce(ones)
(folder / f"{round_}.{dist.get_rank()}").write_text(str(int(ones.item())))
dist.barrier()  # everybody has told it
if round_ <= kills:
    if dist.get_rank() == round_ % dist.get_world_size():
        os.kill(os.getpid(), signal.SIGKILL)
    while True:  # until the lost peer is noticed, or we are stopped
        dist.all_reduce(ones)
dist.barrier()
dist.destroy_process_group()
