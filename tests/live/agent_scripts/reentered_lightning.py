"""Lightning's trainer entered anew in one process, as after a fault: writes what came of each training to `FOLDER/told.json`.

Each is broken off once, at a place of its own; the first is undisturbed.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rallypoint import training
from rallypoint.training import lightning


def _checkpoints() -> dict[str, Any]:
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    return {"enable_checkpointing": True, "callbacks": [ModelCheckpoint(dirpath=folder, monitor="loss")]}


#: Settings of a training, and where it is broken off: in what, and after so many steps.
TRAININGS: dict[str, tuple[Callable[[], dict[str, Any]], tuple[tuple[str, int], ...]]] = {
    "plain": (dict, (("train", 3), ("validation", 10), ("validated", 5))),
    "accumulated": (lambda: {"accumulate_grad_batches": 2}, (("train", 3),)),
    "validated often": (lambda: {"val_check_interval": 2}, (("validation", 4),)),
    "kept": (_checkpoints, (("train", 6),)),
}


class BrokenOffError(Exception):
    """What a lost peer would raise."""


class Module(LightningModule):
    def __init__(self, place: tuple[str, int] | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.place = place
        self.losses: dict[str, float] = {}

    def at(self, what: str) -> None:
        if self.place == (what, self.trainer.global_step):
            self.place = None
            raise BrokenOffError

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.at("train")
        loss = self.layers(batch[0]).square().mean()
        self.losses[f"{self.trainer.current_epoch} {index}"] = loss.item()
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.at("validation")
        self.log("loss", self.layers(batch[0]).sum())

    def on_validation_epoch_end(self) -> None:
        self.at("validated")

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Memory:
    """A state whose last commit is kept."""

    step = 0

    def __init__(self, luggage: Any) -> None:
        self.luggage = luggage
        self.commit()

    def commit(self) -> None:
        self.kept = copy.deepcopy(self.luggage.state_dict())


class OneProcess(lightning.RallypointStrategy):
    """As in a world of one, without a process group."""

    def setup_environment(self) -> None:
        self.accelerator.setup_device(self.root_device)

    def configure_ddp(self) -> None: ...


def trained(settings: dict[str, Any], place: tuple[str, int] | None) -> tuple[str, dict[str, float]]:
    """Train to the end, over and over; return the digest of the weights and the loss of each batch."""
    training.seed_everything(7)
    rows = TensorDataset(torch.randn(40, 8, generator=torch.Generator().manual_seed(1)))
    data = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows, num_replicas=1, rank=0))
    more = {"enable_checkpointing": False, **settings}
    trainer = Trainer(
        strategy=OneProcess(), accelerator="cpu", devices=1, max_steps=16, logger=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, **more,
    )  # fmt: skip
    module = Module(place)
    run: Any = lightning._Run(trainer, module, (data, DataLoader(rows, batch_size=20)), {})
    lightning._callback_of(trainer)._run = run
    memory = run.state = Memory(run._luggage)
    while True:
        try:
            run.fit(memory)
        except BrokenOffError:
            run._luggage.load_state_dict(memory.kept)
        else:
            return training.weights_digest(module), module.losses


torch.set_num_threads(1)
told = {}
for name, (settings, places) in TRAININGS.items():
    for place in (None, *places):
        told[f"{name} {place}"] = trained(settings(), place)
Path(sys.argv[1], "told.json").write_text(json.dumps(told), encoding="utf-8")
