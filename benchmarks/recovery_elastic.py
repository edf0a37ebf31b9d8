"""`recovery_worker.py` with the five lines of docs/guides/recovery.md, each marked `# +`; for `benchmarks.recovery --script`.

The training is the same. There is no checkpoint to read, since whoever lives has the state; who comes new is sent it. A rank
that lives on reaches the marks before `loaded` all at once, when its new world has formed.
"""

import time

STARTED = time.time()

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

KILLS = int(os.environ["BENCH_KILLS"])
RUN = Path(os.environ["BENCH_RUN"])
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
FIRST, LATER, LAST_STEPS = float(os.environ["BENCH_FIRST"]), 1.0, 12
MARKED: set[str] = set()


def mark(name: str, at: float | None = None) -> None:
    """Write down that `name` was reached, the first time in an attempt."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if f"{name} {attempt}" in MARKED:
        return
    MARKED.add(f"{name} {attempt}")
    with (RUN / f"marks-{attempt}-{RANK}.jsonl").open("a") as marks:
        marks.write(json.dumps({"mark": name, "attempt": attempt, "rank": RANK, "at": at or time.time()}) + "\n")


def mark_loaded() -> None:
    """Write down all that a process that lives on does not do again."""
    for name in ("started", "imported", "grouped", "wrapped", "loaded"):
        mark(name)


mark("started", STARTED)
import torch  # noqa: E402
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from rallypoint import training  # noqa: E402  # +

mark("imported")
torch.set_num_threads(1)
training.init_process_group("gloo")  # +
mark("grouped")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mark("wrapped")
state = training.State(model=model, optimizer=optimizer, step=0)  # +
state.on_regroup(mark_loaded)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    mark("loaded")


@training.elastic  # +
def train(state: training.State) -> None:
    """Train, and die now and then."""
    killed, done, began = len(list(RUN.glob("kill-*"))), 0, time.monotonic()
    while killed < KILLS or done < LAST_STEPS:
        time.sleep(0.017)
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        done, state.step = done + 1, state.step + 1
        mark("stepped")
        state.commit()  # +
        if RANK == WORLD_SIZE - 1 and killed < KILLS and time.monotonic() - began > (LATER if killed else FIRST):
            (RUN / f"kill-{killed}").touch()
            mark("killed")
            os.kill(os.getpid(), signal.SIGKILL)


train(state)
dist.destroy_process_group()
sys.exit(0)
