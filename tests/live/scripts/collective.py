"""Steps of nothing but a collective, with nothing of ours: `collective.py FOLDER` goes on until `FOLDER/enough` is there.

`FOLDER/trains` says that all are in the middle of it. All ranks end at the same step, because they decide together.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(minutes=30))  # a lost peer is noticed by its connection
over, step = torch.zeros(1), 0
while not over.item():
    time.sleep(0.02)
    over.fill_(float((folder / "enough").exists()))
    dist.all_reduce(over, dist.ReduceOp.MAX)
    step += 1
    if step == 10:
        (folder / "trains").touch()
dist.destroy_process_group()
