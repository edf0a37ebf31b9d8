"""Plain training that hangs once: `hangs_worker.py FOLDER WAY`; the launcher may be any that sets torchrun's environment.

After a hundred steps rank 1 hangs in its first life, and says when in `FOLDER/hung`; each process leaves its number in
`FOLDER/pid-LIFE-RANK`. Restarted, it trains on until `FOLDER/enough` is there. `BENCH_GROUP_TIMEOUT` (seconds) is handed to the
process group, and with `BENCH_HEARTBEAT` each step sends a heartbeat to the monitor of ft_launcher.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

folder, way = Path(sys.argv[1]), sys.argv[2]
rank, life = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def sleep() -> None:
    time.sleep(3600)


def busy() -> None:
    while True:
        pass


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def skip() -> None:
    """Go on with a collective that the others do not come to, and leave theirs out."""
    dist.all_reduce(torch.ones(1), group=other)


def leave() -> None:
    """End with 0; a helper keeps the sockets open, so that the others wait."""
    if os.fork() == 0:
        (folder / "pid-helper").write_text(str(os.getpid()))
        sleep()
    os._exit(0)


WAYS: dict[str, Callable[[], None]] = {"sleep": sleep, "busy": busy, "stop": stop, "skip": skip, "exited": leave}


def heartbeats() -> Callable[[], None]:
    """Return what sends one, as the script of ft_launcher's user would."""
    if not os.environ.get("BENCH_HEARTBEAT"):
        return lambda: None
    client = import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
    client.init_workload_monitoring()
    beat: Callable[[], None] = client.send_heartbeat
    return beat


torch.set_num_threads(1)
(folder / f"pid-{life}-{rank}").write_text(str(os.getpid()))
timeout = timedelta(seconds=float(os.environ.get("BENCH_GROUP_TIMEOUT", "1800")))
dist.init_process_group("gloo", timeout=timeout)
other = dist.new_group(timeout=timeout)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
beat, over, step = heartbeats(), torch.zeros(1), 0
while not over.item():
    if step == 100 and life == 0 and rank == 1:
        (folder / "hung.tmp").write_text(str(time.time()))
        (folder / "hung.tmp").rename(folder / "hung")
        WAYS[way]()
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    beat()
    over.fill_(float((folder / "enough").exists()))
    dist.all_reduce(over, dist.ReduceOp.MAX)
    step += 1
dist.destroy_process_group()
