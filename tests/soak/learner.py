"""A worker of the chaos soak: `learner.py FOLDER STEPS KIND`, and `learn` for `launch_agent`.

`living` trains with the five lines of `elastic`, `plain` with the checkpoint helper alone; both save a checkpoint every ten
steps. Everything is written into the folder's ledger: what was resumed from, each step with the digest of the state, each save.
The first state that is not that of `FOLDER/course` is kept as a file, with the gradients that led to it.

What is asked of a rank in `FOLDER/orders/RANK` it does in the middle of its next step, once: `raise`, or `exit CODE`. While
`FOLDER/slowly` is there a step takes a twentieth of a second more.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rallypoint import training
from rallypoint.training import Checkpoints
from rallypoint.training.errors import CheckpointError
from tests.soak.lesson import BATCH, ROWS, digest_of, exact_loss, make_data, make_model, make_optimizer

__all__ = ["SAVE_EVERY", "learn"]

SAVE_EVERY = 10

_SLOWLY = 0.05


class Learner:
    """What a rank trains, and what it writes down of it."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps
        self.model = DistributedDataParallel(make_model())
        self.optimizer = make_optimizer(self.model)
        self.data = make_data()
        self.sampler = training.ResumableSampler(ROWS, batch_size=BATCH, seed=3)
        self.checkpoints = Checkpoints()
        # A program that is started again has no supervisor who counts.
        self.attempt = "CHAOS_RUN" if "CHAOS_RUN" in os.environ else "RALLYPOINT_ATTEMPT"
        self.ledger = os.open(folder / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        course = folder / "course"
        self.course = course.read_text().split() if course.exists() else []

    def note(self, what: str, step: int, **more: Any) -> None:
        """Write a line down: one write, so that those of several processes do not mix."""
        line = {
            "at": time.monotonic(),
            "what": what,
            "step": step,
            "fence": [int(os.environ[name]) for name in (self.attempt, "RALLYPOINT_TERM", "RALLYPOINT_ROUND")],
            "rank": dist.get_rank(),
            "world": dist.get_world_size(),
            "pid": os.getpid(),
            **more,
        }
        os.write(self.ledger, (json.dumps(line) + "\n").encode())

    def digest(self) -> str:
        return digest_of(self.model.parameters(), self.optimizer)

    def note_state(self, what: str, step: int) -> None:
        """Write a state down, and keep what made it where it is wrong."""
        digest = self.digest()
        self.note(what, step, digest=digest)
        if self.course and digest != self.course[step]:
            weight = self.model.module.weight
            kept = {"weight": weight.detach(), "gradient": weight.grad, "optimizer": self.optimizer.state_dict()}
            torch.save(kept, self.folder / f"wrong-{step}-rank-{dist.get_rank()}-{os.getpid()}.pt")
            self.course = []

    def step(self, step: int) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        out = self.model(self.data[self.sampler.batch(step)])
        self.obey()
        exact_loss(out, self.model.module.weight, dist.get_world_size()).backward()
        self.optimizer.step()
        if (self.folder / "slowly").exists():
            time.sleep(_SLOWLY)

    def obey(self) -> None:
        """Do what is asked of this rank, once."""
        path = self.folder / "orders" / str(dist.get_rank())
        try:
            order = path.read_text().split()
            path.unlink()
        except FileNotFoundError:
            return
        if order[0] == "raise":
            raise ValueError("the loss is not a number")
        if int(order[1]) or dist.get_world_size() > 1:  # the world may have shrunk since it was asked; see `_exit_well`
            os._exit(int(order[1]))

    def save(self, step: int, parts: dict[str, Any]) -> None:
        """Save; a disk that is full costs the checkpoint, and not the training."""
        try:
            self.checkpoints.save(step, parts)
        except CheckpointError as error:
            self.note("unsaved", step, error=str(error)[:200])
        else:
            self.note("saved", step)


def live(learner: Learner) -> None:
    """Train with the five lines."""
    parts = {"model": learner.model, "optimizer": learner.optimizer, "sampler": learner.sampler}
    state = training.State(**parts, step=learner.checkpoints.load(parts) or 0)

    @training.elastic
    def train(state: training.State) -> None:
        learner.note_state("resumed", state.step)
        while state.step < learner.steps:
            learner.step(state.step)
            state.step += 1
            state.commit()
            learner.note_state("step", state.step)
            if state.step % SAVE_EVERY == 0:
                learner.save(state.step, parts)

    train(state)


def train_plain(learner: Learner) -> None:
    """Train with the checkpoint helper."""
    parts = {"model": learner.model, "optimizer": learner.optimizer, "sampler": learner.sampler}
    begin = learner.checkpoints.load(parts) or 0
    learner.note_state("resumed", begin)
    for step in range(begin, learner.steps):
        learner.step(step)
        training.report_progress(step + 1)
        learner.note_state("step", step + 1)
        if (step + 1) % SAVE_EVERY == 0:
            learner.save(step + 1, parts)


def learn(folder: str, steps: int, kind: str) -> str:
    """Train to the end, and return the digest."""
    # Of two threads that call MKL's vector functions for the first time at once, one may round differently (1e-12, seen in the
    # square root of Adam's first step): that is no fault of a recovery.
    torch.set_num_threads(1)
    training.init_process_group("gloo")
    learner = Learner(Path(folder), steps)
    (live if kind == "living" else train_plain)(learner)
    told = learner.digest()
    learner.note("done", steps, digest=told)
    with contextlib.suppress(RuntimeError):  # the others have ended, and their ends of the group with them
        dist.destroy_process_group()
    return told


if __name__ == "__main__":
    learn(sys.argv[1], int(sys.argv[2]), sys.argv[3])
