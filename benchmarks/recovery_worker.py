"""The script that both launchers run: plain PyTorch, nothing of Rallypoint in it.

A small network trains with DDP over gloo; a checkpoint goes to disk every five steps; rank 1 ends itself with SIGKILL a few
times, once per attempt that trains. Each process appends what it reached and when (wall clock of this machine) to its own file.
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
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STEPS_PER_ATTEMPT = 12
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
step = 0
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.module.load_state_dict(state["model"])
    step = state["step"]
mark("loaded")
for done in range(STEPS_PER_ATTEMPT):
    time.sleep(0.017)
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    step += 1
    if done == 0:
        mark("stepped")
    if step % 5 == 0 and RANK == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, RUN / "checkpoint.tmp")
        (RUN / "checkpoint.tmp").replace(checkpoint)
    if RANK == 1 and done == STEPS_PER_ATTEMPT - 3 and len(list(RUN.glob("kill-*"))) < KILLS:
        (RUN / f"kill-{ATTEMPT}").touch()
        mark("killed")
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
sys.exit(0)
