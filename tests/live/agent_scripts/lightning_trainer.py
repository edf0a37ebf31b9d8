"""Lightning's Trainer on two ranks: `lightning_trainer.py FOLDER STEPS [MODE ...]`. A small model with dropout, AdamW.

Tells what living.py tells, in the same files, and takes its modes `kill=RANK@STEP` and `raise=RANK@STEP`; `validation=`
raises in the validation that ends an epoch. What a validation of a rank found, by step, is in `FOLDER/validated.RANK`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rallypoint import training
from rallypoint.training import lightning

folder, steps, modes = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]


def once(mode: str, step: int) -> bool:
    wanted = f"{mode}={os.environ['RANK']}@{step}"
    mark = folder / f"did.{wanted}"
    if wanted not in modes or mark.exists():
        return False
    mark.touch()
    return True


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))

    def training_step(self, batch: tuple[torch.Tensor], batch_idx: int) -> torch.Tensor:
        step = self.trainer.global_step
        if once("kill", step):
            os.kill(os.getpid(), signal.SIGKILL)
        if once("raise", step):
            raise ValueError("loss is nan")
        loss = self.layers(batch[0]).square().mean()
        self.log("loss", loss)
        row = f"{os.environ['RALLYPOINT_ROUND']} {os.getpid()} {step} {loss.item().hex()} {os.environ['WORLD_SIZE']}\n"
        with (folder / f"steps.{os.environ['RANK']}").open("a") as file:
            file.write(row)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor], batch_idx: int) -> None:
        if once("validation", self.trainer.global_step):
            raise ValueError("validation fails")
        self.log("val_loss", self.layers(batch[0]).square().mean(), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        path = folder / f"validated.{os.environ['RANK']}"
        told = json.loads(path.read_text()) if path.exists() else {}
        told[str(self.trainer.global_step)] = float(self.trainer.callback_metrics["val_loss"])
        path.write_text(json.dumps(told))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


training.seed_everything(7)
rows = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
trainer = Trainer(
    strategy=lightning.RallypointStrategy(process_group_backend="gloo"),
    accelerator="cpu",
    devices=2,
    max_steps=steps,
    log_every_n_steps=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
model = Module()
training.seed_everything(100 + int(os.environ["RANK"]))
data = DataLoader(TensorDataset(rows), batch_size=4, shuffle=True)
lightning.fit(trainer, model, data, DataLoader(TensorDataset(rows[:8]), batch_size=4))
digest = training.weights_digest(model)
if int(os.environ["RANK"]) == 0:
    (folder / "digest").write_text(digest)
