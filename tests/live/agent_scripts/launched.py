"""A worker that writes what its launcher gave it: `launched.py --touch-file-dir DIR [--fail] [--init-method URL [--die-once]]`.

It writes `DIR/RANK` with its variables, and fails with `--fail`. With `--init-method` it forms a group there and adds up the
ranks; only then does it import torch. With `--die-once` rank 1 is killed after that, in the first round.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

NAMES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "SENTINEL"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"),
)

parser = argparse.ArgumentParser()
parser.add_argument("--touch-file-dir", type=Path, required=True)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--init-method", default="")
parser.add_argument("--die-once", action="store_true")
args = parser.parse_args()

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
seen = {name: os.environ.get(name, "") for name in NAMES}
if args.fail:
    raise RuntimeError("told to fail")
if args.init_method:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=args.init_method, rank=rank, world_size=size)
    total = torch.tensor([rank])
    dist.all_reduce(total)
    if args.die_once and rank == 1 and seen["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    seen["total"] = str(int(total))
    dist.destroy_process_group()
(args.touch_file_dir / str(rank)).write_text(json.dumps(seen))
