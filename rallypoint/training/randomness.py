"""The random states of this process, to be taken up again by the process that replaces it."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

__all__ = ["random_state", "restore_random_state"]


def random_state() -> dict[str, Any]:
    """Return the states of torch (CPU and the current GPU), `random`, and numpy's legacy generator where it is imported."""
    numpy = sys.modules.get("numpy")
    on_gpu = torch.cuda.is_initialized()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if on_gpu else None,
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Take up what :func:`random_state` returned; a generator that is not here, or was not there, stays as it is."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    numpy = sys.modules.get("numpy")
    if state["numpy"] is not None and numpy is not None:
        numpy.random.set_state(state["numpy"])
