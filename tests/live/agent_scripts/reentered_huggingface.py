"""HuggingFace's trainer entered anew in one process, as after a fault: writes what came of each training to `FOLDER/told.json`.

Each is broken off once, at a place of its own; the first is undisturbed.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from rallypoint import training
from rallypoint.training import huggingface

#: Settings of a training, and where it is broken off: in what, and after so many steps.
TRAININGS: dict[str, tuple[dict[str, Any], tuple[tuple[str, int], ...]]] = {
    "plain": ({"save_strategy": "no"}, (("train", 3), ("epoch", 11))),
    "evaluated": (
        {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True},
        (("eval", 4), ("save", 8)),
    ),
    "accumulated": ({"save_strategy": "no", "gradient_accumulation_steps": 2}, (("train", 5),)),
}


#: What the trainer logs of clocks.
TIMED = ("runtime", "per_second")


class BrokenOffError(Exception):
    """What a lost peer would raise."""


class Breaking(TrainerCallback):
    """Breaks a training off once."""

    def __init__(self, place: tuple[str, int] | None) -> None:
        self.place = place

    def at(self, what: str, step: int) -> None:
        if self.place == (what, step):
            self.place = None
            raise BrokenOffError

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.at("save", state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.at("epoch", state.global_step)


class Model(nn.Module):
    def __init__(self, breaking: Breaking) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.breaking, self.trainer = breaking, None

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        trainer: Any = self.trainer
        self.breaking.at("train" if self.training else "eval", trainer.state.global_step)
        return {"loss": (self.layers(x).squeeze(-1) - labels).square().mean()}


class Memory:
    """A state whose last commit is kept."""

    step = 0

    def __init__(self, luggage: Any) -> None:
        self.luggage = luggage
        self.commit()

    def commit(self) -> None:
        self.kept = copy.deepcopy(self.luggage.state_dict())


def trained(folder: str, settings: dict[str, Any], place: tuple[str, int] | None) -> tuple[str, list[dict[str, Any]]]:
    """Train to the end, over and over; return the digest of the weights and what was logged."""
    training.seed_everything(7)
    rows = torch.randn(44, 8, generator=torch.Generator().manual_seed(1))
    data = [{"x": row, "labels": row.sum()} for row in rows]
    breaking = Breaking(place)
    model: Any = Model(breaking)
    arguments = TrainingArguments(
        output_dir=folder, max_steps=16, per_device_train_batch_size=4, warmup_steps=3, logging_steps=3, use_cpu=True,
        disable_tqdm=True, report_to="none", **settings,
    )  # fmt: skip
    callbacks = [breaking, *([EarlyStoppingCallback(20)] if "eval_steps" in settings else [])]
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks)
    object.__setattr__(model, "trainer", trainer)
    run: Any = huggingface._Run(trainer, {})
    huggingface._callback_of(trainer)._run = run
    memory = run.state = Memory(run._luggage)
    while True:
        try:
            run.train(memory)
        except BrokenOffError:
            run._luggage.load_state_dict(memory.kept)
        else:
            break
    logged = [{name: line[name] for name in line if not name.endswith(TIMED)} for line in trainer.state.log_history]
    return training.weights_digest(model), logged


torch.set_num_threads(1)
told = {}
for name, (settings, places) in TRAININGS.items():
    for place in (None, *places):
        with tempfile.TemporaryDirectory() as folder:
            told[f"{name} {place}"] = trained(folder, settings, place)
Path(sys.argv[1], "told.json").write_text(json.dumps(told), encoding="utf-8")
