"""A worker that lives through rounds: `living.py FOLDER STEPS [MODE ...]`. DDP on a model with dropout, Adam, a sampler.

It tells its process number (`FOLDER/started/ROUND.RANK`) and each finished step (`FOLDER/steps.RANK`: round, pid, step, loss in
hex, size of the world). At the end rank 0 writes the digest of the weights to `FOLDER/digest`. Modes, any of them:
`kill=RANK@STEP` kills itself in the middle of that step, once; `raise=RANK@STEP` raises there, once, and `always=` each
time; `slowly-killed=RANK@STEP` is killed, too, but ends 0.8 s before anybody sees it, and `reset=RANK@STEP` loses its
connection after 0.3 s; `stuck=RANK@STEP` has its collective never end there, as gloo's does now and then in a world that is
lost; `fsdp` shards the model with FSDP2; `plain` trains without `elastic`. While `FOLDER/slowly` exists, each step takes
50 ms more, and 1 s more in the second half: the run must not end before the test has seen what it waits for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

from rallypoint import training
from rallypoint.training.reconfigurable import ReconfigurableGroup

folder, steps, modes = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]


def once(mode: str, step: int) -> bool:
    """Return whether this rank does `mode` in this step, the first time it is asked."""
    wanted = f"{mode}={os.environ['RANK']}@{step}"
    mark = folder / f"did.{wanted}"
    if wanted not in modes or mark.exists():
        return False
    mark.touch()
    return True


class Unending(dist.Work):
    """Work that nothing ends, whatever becomes of its connections."""

    def is_completed(self) -> bool:
        return False

    def get_future(self) -> torch.futures.Future:
        return torch.futures.Future()


class Stuck:
    """A process group whose sums never end."""

    def __init__(self, group: object) -> None:
        self._group = group

    def allreduce(self, *_: object) -> Unending:
        return Unending()

    def __getattr__(self, name: str) -> object:
        return getattr(self._group, name)


def end_slowly() -> None:
    """End the first thread in the kernel, as SIGKILL does on a busy machine, and all others 0.8 s later."""
    threading.Timer(0.8, os.kill, (os.getpid(), signal.SIGKILL)).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit


def note(step: int, loss: float) -> None:
    with (folder / f"steps.{os.environ['RANK']}").open("a") as file:
        file.write(f"{os.environ['RALLYPOINT_ROUND']} {os.getpid()} {step} {float(loss).hex()} {dist.get_world_size()}\n")


def wrapped(model: nn.Sequential) -> nn.Module:
    if "fsdp" in modes:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
        return model
    return nn.parallel.DistributedDataParallel(model)


world = training.init_process_group("gloo")
started = folder / "started" / f"{os.environ['RALLYPOINT_ROUND']}.{world.rank}"
started.parent.mkdir(exist_ok=True)
started.write_text(str(os.getpid()))
training.seed_everything(7)
model = wrapped(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)))
training.seed_everything(100 + world.rank)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
sampler = training.ResumableSampler(64, batch_size=8, seed=3)
state = training.State(model=model, optimizer=optimizer, sampler=sampler, step=0)


def train(state: training.State) -> None:
    while state.step < steps:
        rows = sampler.batch(state.step)
        optimizer.zero_grad()
        loss = model(data[rows]).square().mean()
        if once("kill", state.step):
            os.kill(os.getpid(), signal.SIGKILL)
        if once("slowly-killed", state.step):
            end_slowly()
        if once("reset", state.step):
            time.sleep(0.3)
            raise RuntimeError("Read error: Connection reset by peer")
        if once("stuck", state.step):
            assert isinstance(dist.group.WORLD, ReconfigurableGroup)
            dist.group.WORLD.inner = Stuck(dist.group.WORLD.inner)
        if once("raise", state.step) or f"always={os.environ['RANK']}@{state.step}" in modes:
            raise ValueError("loss is nan")
        (loss * sampler.weight(state.step, rows)).backward()
        optimizer.step()
        note(state.step, loss.item())
        if (folder / "slowly").exists():
            time.sleep(0.05 if 2 * state.step < steps else 1.0)
        state.step += 1
        state.commit()


(train if "plain" in modes else training.elastic(train))(state)
told = training.weights_digest(model)
if dist.get_rank() == 0:
    (folder / "digest").write_text(told)
dist.destroy_process_group()
