"""What `elastic` needs of a loop that is somebody else's: a state that is packed while the loop runs, and unpacked in it.

A loop of one's own has its model and optimizer before it begins. The loops of HuggingFace's and Lightning's trainers make them
when they are entered, and nobody can enter them in the middle. So the state is luggage: packed at each step boundary; after a
fault it is put down, the loop is entered anew as if it went on from a checkpoint, and unpacks what it finds.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

from rallypoint.training.context import environment_int
from rallypoint.training.randomness import random_state, restore_random_state
from rallypoint.training.state import State

__all__ = ["FixedState", "Luggage", "packed_randomness", "unpack_randomness"]


class FixedState(State):
    """The state of a loop that cannot keep its global batch in a world of another size."""

    resizes = False


class Luggage:
    """The state of a loop as one part of a `State`; `pack` returns it, and is called at each commit."""

    def __init__(self, pack: Callable[[], dict[str, Any]]) -> None:
        self._pack = pack
        self._down: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return what the loop has now."""
        return self._pack()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put down what the loop is to find when it is entered."""
        self._down = state

    def take(self) -> dict[str, Any] | None:
        """Return what was put down, once; None where nothing was."""
        down, self._down = self._down, None
        return down


def packed_randomness() -> tuple[int, bytes]:
    """Return this rank and its random states, as one leaf of a state: there are hundreds of numbers in them."""
    return environment_int(os.environ, "RANK", default=0), pickle.dumps(random_state(), protocol=5)


def unpack_randomness(packed: tuple[int, bytes]) -> None:
    """Take up random states that were this rank's; those of another stay where they are."""
    rank, state = packed
    if rank == environment_int(os.environ, "RANK", default=0):
        restore_random_state(pickle.loads(state))  # noqa: S301  we packed it
