"""A training script that knows nothing of Rallypoint: HuggingFace's Trainer, `hf_plain.py FOLDER`, until `enough` is there.

Its steps take a while, since the trainer tells its progress every five seconds at the most.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

folder = Path(sys.argv[1])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


class UntilEnough(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.05)
        control.should_training_stop = (folder / "enough").exists()


rows = [{"x": torch.randn(8), "labels": torch.tensor(1.0)} for _ in range(40)]
arguments = TrainingArguments(
    output_dir=str(folder / "out"), max_steps=100_000, logging_steps=2, save_strategy="no", use_cpu=True, disable_tqdm=True
)
Trainer(model=Model(), args=arguments, train_dataset=rows, callbacks=[UntilEnough()]).train()
