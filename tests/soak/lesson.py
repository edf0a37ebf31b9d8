"""A training whose every state is known beforehand, bit by bit, whatever the number of ranks.

The gradient is made of whole numbers, so adding it up in another order, or over another number of ranks, gives the same bits.
It depends on the weights all the same: who takes up a wrong state leaves the way at once, and does not come back to it. So the
undisturbed run is not a matter of belief: `course` says what the digest is after each step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import nn

from rallypoint import training

__all__ = ["BATCH", "ROWS", "course", "digest_of", "exact_loss", "make_data", "make_model", "make_optimizer"]

#: Samples, samples of a global batch, and the size of the layer: a state of 0.8 MB with the optimizer's.
ROWS, BATCH, _IN, _OUT = 64, 8, 8, 4096

#: Dyadic, so that a division by it is exact.
_SHARE = 1.0 / BATCH


def make_model() -> nn.Linear:
    """Return the model as every process begins it."""
    training.seed_everything(7)
    return nn.Linear(_IN, _OUT, bias=False, dtype=torch.float64)


def make_data() -> torch.Tensor:
    """Return the samples: whole numbers."""
    return torch.randint(-4, 5, (ROWS, _IN), generator=torch.Generator().manual_seed(1)).to(torch.float64)


def exact_loss(out: torch.Tensor, weight: torch.Tensor, world_size: int) -> torch.Tensor:
    """Return this rank's share of the loss; DDP divides the sum of the gradients by `world_size`."""
    # Of a few elements, one after the other: a sum over many is rounded as its threads like it.
    turn = 1 + int(abs(sum(float(x) for x in weight.detach().reshape(-1)[:4])) * 4096) % 4
    sign = (torch.arange(out.shape[1], dtype=torch.float64) % 7) - 3
    return (out * sign).sum() * (turn * _SHARE * world_size)


def digest_of(parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> str:
    """Return a digest of the weights and of what the optimizer has of them."""
    found = hashlib.blake2b(digest_size=12)
    for parameter in parameters:
        found.update(parameter.detach().numpy().tobytes())
        for name, value in sorted(optimizer.state.get(parameter, {}).items()):
            found.update(name.encode())
            found.update(value.numpy().tobytes())
    return found.hexdigest()


def make_optimizer(model: nn.Module) -> torch.optim.Adam:
    """Return the optimizer."""
    return torch.optim.Adam(model.parameters(), lr=0.01)


def course(steps: int) -> tuple[str, ...]:
    """Return the digest before the first step and after each: what a run has to be at, whatever happened to it."""
    model, data = make_model(), make_data()
    optimizer = make_optimizer(model)
    sampler = training.ResumableSampler(ROWS, batch_size=BATCH, seed=3)
    found = [digest_of(model.parameters(), optimizer)]
    for step in range(steps):
        optimizer.zero_grad()
        exact_loss(model(data[sampler.batch(step)]), model.weight, 1).backward()
        optimizer.step()
        found.append(digest_of(model.parameters(), optimizer))
    return tuple(found)
