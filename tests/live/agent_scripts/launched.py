"""A worker that writes what its launcher gave it: `launched.py --touch-file-dir DIR [--fail] [--init-method URL]`.

It writes `DIR/RANK` with its variables, and fails where it is told to. With `--init-method` it forms a group there and adds up
the ranks; only then does it import torch.
"""

from __future__ import annotations

import argparse
import json
import os
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
args = parser.parse_args()

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
seen = {name: os.environ.get(name, "") for name in NAMES}
if args.fail:
    raise RuntimeError("told to fail")
if args.init_method:
    import torch
    import torch.distributed as dist

    where = {} if args.init_method == "env://" else {"rank": rank, "world_size": size}
    dist.init_process_group("gloo", init_method=args.init_method, **where)
    total = torch.tensor([rank])
    dist.all_reduce(total)
    seen["total"] = str(int(total))
    dist.destroy_process_group()
(args.touch_file_dir / str(rank)).write_text(json.dumps(seen))
