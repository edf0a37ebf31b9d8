"""HuggingFace's Trainer on two ranks: `hf_trainer.py FOLDER STEPS [MODE ...]`. A small model with dropout, AdamW, a schedule.

Tells what living.py tells, in the same files, and takes its modes `kill=RANK@STEP` and `raise=RANK@STEP`. At the end rank 0
writes the trainer's log to `FOLDER/log.json`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from rallypoint import training
from rallypoint.training import huggingface

folder, steps, modes = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]


def once(mode: str, step: int) -> bool:
    wanted = f"{mode}={os.environ['RANK']}@{step}"
    mark = folder / f"did.{wanted}"
    if wanted not in modes or mark.exists():
        return False
    mark.touch()
    return True


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        step = trainer.state.global_step
        if once("kill", step):
            os.kill(os.getpid(), signal.SIGKILL)
        if once("raise", step):
            raise ValueError("loss is nan")
        loss = (self.layers(x).squeeze(-1) - labels).square().mean()
        note(step, loss)
        return {"loss": loss}


def note(step: int, loss: torch.Tensor) -> None:
    row = f"{os.environ['RALLYPOINT_ROUND']} {os.getpid()} {step} {float(loss).hex()} {os.environ['WORLD_SIZE']}\n"
    with (folder / f"steps.{os.environ['RANK']}").open("a") as file:
        file.write(row)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.x = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.x[index].sum()}


class Quiet(TrainerCallback):
    """What the user brings is told of every world that begins."""


world = training.init_process_group("gloo")
training.seed_everything(7)
arguments = TrainingArguments(
    output_dir=str(folder / "out"),
    max_steps=steps,
    per_device_train_batch_size=4,
    learning_rate=0.01,
    warmup_steps=3,
    logging_steps=2,
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
    report_to="none",
    seed=7,
)
trainer = Trainer(model=Model(), args=arguments, train_dataset=Rows(), callbacks=[Quiet()])
training.seed_everything(100 + world.rank)
huggingface.train(trainer)
told = training.weights_digest(trainer.model)
if int(os.environ["RANK"]) == 0:
    lines = [{k: v for k, v in line.items() if k in ("step", "loss", "learning_rate")} for line in trainer.state.log_history]
    (folder / "log.json").write_text(json.dumps([line for line in lines if "loss" in line]))
    (folder / "digest").write_text(told)
