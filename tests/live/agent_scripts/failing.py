"""Has what our start-up module wraps fail, prints the tracebacks in several ways, and ends by the last of the errors.

`failing.py FOLDER`: the first round waits for the file `go` before the end.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

FOLDER, ROUND = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Broken(torch.nn.Module):
    """Fails wherever it is asked for something."""

    def __getitem__(self, index: int) -> torch.Tensor:
        raise ValueError(f"no sample {index}")

    def __len__(self) -> int:
        return 4

    def __getstate__(self) -> object:
        raise ValueError("cannot be saved")

    def train(self, mode: bool = True) -> Broken:
        raise ValueError("stays as it is")


class Wrong(torch.autograd.Function):
    """Fails in its backward pass."""

    @staticmethod
    def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: object, _gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("no gradient")


def fails(work: Callable[[], object]) -> BaseException:
    """Return what `work` raises."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("it does not fail")


dist.init_process_group("gloo")
broken = Broken()
WAYS: dict[str, Callable[[], object]] = {
    "loader": lambda: list(DataLoader(broken)),  # type: ignore[arg-type]
    "loader's processes": lambda: list(DataLoader(broken, num_workers=1)),  # type: ignore[arg-type]
    "backward": lambda: Wrong.apply(torch.ones(1, requires_grad=True)).sum().backward(),
    "arguments": functools.partial(dist.all_reduce),
    "collective": lambda: dist.broadcast(torch.ones(1), src=7),
    "save": lambda: torch.save(broken, FOLDER / "model.pt"),
    "eval": broken.eval,
    "parallel": lambda: DistributedDataParallel(torch.nn.ReLU()),
    "exit": lambda: sys.exit(3),
}
found = {name: fails(work) for name, work in WAYS.items()}
for name, error in found.items():
    print(f"== {name}", file=sys.stderr)
    traceback.print_exception(error)
logging.getLogger().error("== logged", exc_info=found["loader"])
(FOLDER / f"failed-{ROUND}").touch()
while ROUND == 0 and not (FOLDER / "go").exists():
    time.sleep(0.02)
try:
    WAYS["backward"]()
except ValueError:
    list(DataLoader(broken))  # type: ignore[arg-type]
