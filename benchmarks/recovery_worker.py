"""The script that all launchers run: plain PyTorch, nothing of Rallypoint in it.

A small network trains with DDP over gloo; a checkpoint goes to disk every five steps; the last rank ends itself with SIGKILL a
few times, once per attempt that trains: the first time when the job has trained for a while, then a second into each attempt.
Each process appends what it reached and when (wall clock of this machine) to its own file.
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
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
#: Seconds of training before the first kill, and before each later one; steps of the last attempt.
FIRST, LATER, LAST_STEPS = float(os.environ["BENCH_FIRST"]), 1.0, 12
KILLED = len(list(RUN.glob("kill-*")))
MARKS = (RUN / f"marks-{ATTEMPT}-{RANK}.jsonl").open("a", buffering=1)


def mark(name: str, at: float | None = None) -> None:
    """Write down that `name` was reached."""
    MARKS.write(json.dumps({"mark": name, "attempt": ATTEMPT, "rank": RANK, "at": at or time.time()}) + "\n")


mark("started", STARTED)
import torch  # noqa: E402
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

mark("imported")
torch.set_num_threads(1)
dist.init_process_group("gloo")
mark("grouped")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mark("wrapped")
checkpoint = RUN / "checkpoint.pt"
step = done = 0
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.module.load_state_dict(state["model"])
    step = state["step"]
mark("loaded")
began = time.monotonic()
while KILLED < KILLS or done < LAST_STEPS:
    time.sleep(0.017)
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    step, done = step + 1, done + 1
    if done == 1:
        mark("stepped")
    if step % 5 == 0 and RANK == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, RUN / "checkpoint.tmp")
        (RUN / "checkpoint.tmp").replace(checkpoint)
    if RANK == WORLD_SIZE - 1 and KILLED < KILLS and time.monotonic() - began > (LATER if KILLED else FIRST):
        (RUN / f"kill-{ATTEMPT}").touch()
        mark("killed")
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
sys.exit(0)
