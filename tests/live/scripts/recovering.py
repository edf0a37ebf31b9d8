"""An elastic worker for MindCluster's strategies: `recovering.py FOLDER [FLAG ...]`; flags of MindSpeed are ignored.

Each step all-reduces one number, commits, and takes a snapshot that may become a checkpoint in `FOLDER/storage`. At the start
of each round and after each step a rank appends a line to `FOLDER/steps.RANK`: attempt, round, pid, step, world size.
While `FOLDER/fault.RANK` exists that rank breaks in its next step: it raises (`raise`, `always`), raises the error of a lost
connection (`echo`), or kills itself (`kill`); all but `always` remove the file before. `FOLDER/enough` ends the training.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed as dist

from rallypoint import training

folder = Path(sys.argv[1])
world = training.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
state = training.State(model=model, step=0)
snapshots = training.Snapshots({"model": model}, storage=folder / "storage")
if (
    os.environ["RALLYPOINT_ROUND"] == "1"
):  # later the commits are newer, and a process that is new there meets others in `train`
    state.step = snapshots.load() or 0


def break_down() -> None:
    """Do what the file of this rank asks for."""
    path = folder / f"fault.{os.environ['RANK']}"
    fault = path.read_text() if path.exists() else ""
    if fault and fault != "always":
        path.unlink()
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "echo":
        raise RuntimeError("Connection closed by peer")
    if fault:
        raise ValueError("loss is nan")


def note() -> None:
    told = (os.environ["RALLYPOINT_ATTEMPT"], os.environ["RALLYPOINT_ROUND"], os.getpid(), state.step, dist.get_world_size())
    with (folder / f"steps.{os.environ['RANK']}").open("a") as file:
        file.write(" ".join(map(str, told)) + "\n")


@training.elastic
def train(state: training.State) -> None:
    over = torch.zeros(1)
    note()
    while not over.item():
        break_down()
        # All ranks stop after the same step.
        over.fill_(float(os.path.exists(folder / "enough")))  # noqa: PTH110 - asked at each step
        dist.all_reduce(over, dist.ReduceOp.MIN)
        state.step += 1
        note()
        snapshots.save(state.step)
        state.commit()


train(state)
snapshots.close()
dist.destroy_process_group()
