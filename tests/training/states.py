"""Small states that are trained a step."""

from __future__ import annotations

import torch
from torch import nn


def make(seed=0, wide=4):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(wide, wide), nn.BatchNorm1d(wide))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def step(state):
    state["optimizer"].zero_grad()
    width = state["model"][0].in_features
    state["model"](torch.randn(8, width)).sum().backward()
    state["optimizer"].step()


def spoil(path, offset=100):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 4]))
