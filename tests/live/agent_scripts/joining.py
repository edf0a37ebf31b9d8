"""`joining.py FOLDER`: DDP over gloo until FOLDER/finish is there; `start.WORLD.RANK` names what was imported at first."""

from __future__ import annotations

import sys

AT_FIRST = sorted(sys.modules)

import json  # noqa: E402
import time  # noqa: E402
import xmlrpc.client  # noqa: E402, F401  of the standard library, and imported by nobody else
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = torch.zeros(1)
    while not end.item():
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        found = folder / f"start.{world}.{rank}"
        if not found.exists():
            found.write_text(json.dumps([name for name in AT_FIRST if name in ("torch", "xmlrpc.client")]))
        time.sleep(0.02)
        end.fill_(float((folder / "finish").exists()))
        dist.all_reduce(end)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
