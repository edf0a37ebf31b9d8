"""Train a model that FSDP2 shards, with three lines of Snapshots: `sharded.py WORK STEPS [STORAGE]`.

Each round tells with what it began (`WORK/resumed.ROUND.RANK`: step, digest of the whole weights, size of the world) and where
its snapshots are (`WORK/memory.ROUND.RANK`), and rank 0 the digest after each step (`WORK/digest.ROUND.STEP`). With
`WORK/until.N` training stands still after step N until `WORK/go` is there; with `WORK/fail.N` rank 1 ends with 3 after it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard

from rallypoint.training import Snapshots, process_group, report_progress, weights_digest


def main(work: Path, steps: int, storage: str | None) -> None:
    """Train; every rank computes the same, so that the weights do not depend on how many there are."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Tanh(), torch.nn.Linear(24, 16))
    round_ = os.environ["RALLYPOINT_ROUND"]
    with process_group(backend="gloo") as world:
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        snapshots = Snapshots({"model": model, "optimizer": optimizer}, storage=storage)
        first = snapshots.load() or 0
        (work / f"memory.{round_}.{world.rank}").write_text(os.environ["RALLYPOINT_SNAPSHOT_DIR"])
        told = f"{first} {weights_digest(model)} {world.world_size}"
        (work / f"resumed.{round_}.{world.rank}").write_text(told)
        for step in range(first + 1, steps + 1):
            optimizer.zero_grad()
            model(torch.full((4, 16), step / 7)).square().mean().backward()
            optimizer.step()
            snapshots.save(step)
            report_progress(step)
            digest = weights_digest(model)
            if world.rank == 0:
                (work / f"digest.{round_}.{step}").write_text(digest)
            while (work / f"until.{step}").exists() and not (work / "go").exists():
                time.sleep(0.02)
            if world.rank == 1 and (work / f"fail.{step}").exists():
                os._exit(3)
            dist.barrier()
        snapshots.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
