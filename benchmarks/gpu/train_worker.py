"""The training of the recovery check: DDP on GPU_CHECK_DEVICE over GPU_CHECK_BACKEND, whose last rank kills itself.

With GPU_CHECK_FIVE_LINES=1 it has the five lines of docs/guides/recovery.md (each marked `# +`), else it reads its checkpoint.
Marks are those of benchmarks/recovery_marks.py; a step is marked when the device has done it.
"""

import time

STARTED = time.time()

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

RUN, KILLS = Path(os.environ["GPU_CHECK_RUN"]), int(os.environ["GPU_CHECK_KILLS"])
FIRST, LATER, LAST_STEPS = float(os.environ["GPU_CHECK_FIRST"]), 1.0, 10
BACKEND, FIVE_LINES = os.environ["GPU_CHECK_BACKEND"], os.environ["GPU_CHECK_FIVE_LINES"] == "1"
MARKED: set[str] = set()


def mark(name: str, at: float | None = None) -> None:
    """Write down that `name` was reached, the first time in an attempt."""
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    if f"{name} {attempt}" in MARKED:
        return
    MARKED.add(f"{name} {attempt}")
    with (RUN / f"marks-{attempt}-{rank}.jsonl").open("a") as marks:
        marks.write(json.dumps({"mark": name, "attempt": attempt, "rank": rank, "at": at or time.time()}) + "\n")


def mark_prepared() -> None:
    """Write down all that a process that lives on does not do again."""
    for name in ("started", "imported", "grouped", "wrapped", "loaded"):
        mark(name)


def chosen_device() -> torch.device:
    """Return the device of this rank; ranks share devices where there are fewer."""
    if os.environ["GPU_CHECK_DEVICE"] == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


mark("started", STARTED)
mark("imported")
torch.set_num_threads(1)
device = chosen_device()
if FIVE_LINES:
    from rallypoint import training  # +

    training.init_process_group(BACKEND)  # +
else:
    dist.init_process_group(BACKEND)
mark("grouped")
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
model = DistributedDataParallel(network, device_ids=None if device.type == "cpu" else [device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mark("wrapped")
checkpoint = RUN / "checkpoint.pt"


def step_once() -> None:
    """Take one step, and wait for the device."""
    time.sleep(0.017)
    optimizer.zero_grad()
    model(torch.randn(32, 64, device=device)).square().mean().backward()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    mark("stepped")


def die_when_due(killed: int, began: float) -> None:
    """End the last rank by SIGKILL, a few times."""
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if last and killed < KILLS and time.monotonic() - began > (LATER if killed else FIRST):
        (RUN / f"kill-{killed}").touch()
        mark("killed")
        os.kill(os.getpid(), signal.SIGKILL)


def train_plain() -> None:
    """Train as any script does: a checkpoint on disk, read at the start."""
    step = done = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        network.load_state_dict(state["model"])
        step = state["step"]
    mark("loaded")
    killed, began = len(list(RUN.glob("kill-*"))), time.monotonic()
    while killed < KILLS or done < LAST_STEPS:
        step_once()
        step, done = step + 1, done + 1
        if step % 5 == 0 and dist.get_rank() == 0:
            torch.save({"model": network.state_dict(), "step": step}, RUN / "checkpoint.tmp")
            (RUN / "checkpoint.tmp").replace(checkpoint)
        die_when_due(killed, began)


def train_elastic() -> None:
    """Train with the five lines."""
    state = training.State(model=model, optimizer=optimizer, step=0)  # +
    state.on_regroup(mark_prepared)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        mark("loaded")

    @training.elastic  # +
    def train(state: training.State) -> None:
        killed, done, began = len(list(RUN.glob("kill-*"))), 0, time.monotonic()
        while killed < KILLS or done < LAST_STEPS:
            step_once()
            done, state.step = done + 1, state.step + 1
            state.commit()  # +
            die_when_due(killed, began)

    train(state)


if FIVE_LINES:
    train_elastic()
else:
    train_plain()
dist.destroy_process_group()
sys.exit(0)
