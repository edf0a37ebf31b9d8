"""A training whose memory follows its batch: `batch_worker.py BYTES_PER_SAMPLE FILE`, for the tuned batch.

It takes each batch that the agent writes down, allocates so much on the device in each step, and ends when the batch has stayed
for long. FILE gets the batches that it had, and the largest sum of bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from rallypoint.training import report_progress

#: The first batch, and seconds after which one that has stayed is the last: a measurement takes 20 steps and a report.
FIRST, STAYS = 8, 10.0

each, target = int(sys.argv[1]), Path(sys.argv[2])
config = Path(os.environ["DLROVER_PARAL_CONFIG_PATH"])
memory = os.environ.get("GPU_STAND_IN_MEMORY")


def allocate(batch: int) -> object:
    """Use what a batch needs; in a dry run only say so to the stand-in for nvidia-smi."""
    if os.environ["GPU_CHECK_DEVICE"] == "cuda":
        return torch.empty(batch * each, dtype=torch.uint8, device="cuda").fill_(1)
    assert memory is not None
    state = json.loads(Path(memory).read_text())
    beside = Path(f"{memory}.new")
    beside.write_text(json.dumps({**state, "used": batch * each}))
    beside.rename(memory)
    return None


def main() -> None:
    """Train."""
    told = json.loads(config.read_text())
    told["dataloader"]["batch_size"] = FIRST
    config.write_text(json.dumps(told))
    batch, version, batches, since, step = FIRST, 0, [FIRST], time.monotonic(), 0
    while time.monotonic() - since < STAYS or len(batches) == 1:
        step += 1
        try:
            loader = json.loads(config.read_text())["dataloader"]
        except ValueError:  # it is just being written
            loader = {"version": 0}
        if loader["version"] > version and loader["batch_size"] != batch:
            version, batch, since = loader["version"], loader["batch_size"], time.monotonic()
            batches.append(batch)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        activations = allocate(batch)
        time.sleep(0.02)
        del activations
        report_progress(step, batch=float(batch))
    target.write_text(json.dumps({"batches": batches, "bytes": max(batches) * each}))


main()
