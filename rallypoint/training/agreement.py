"""One decision for all ranks: rank 0 makes it, everyone returns it or raises its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed as dist

from rallypoint.training import signed
from rallypoint.training.errors import CheckpointError
from rallypoint.wire.errors import RallypointError

__all__ = ["agree", "grouped", "place"]

T = TypeVar("T")


def grouped() -> bool:
    """Return whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()


def place() -> tuple[int, int]:
    """Return (rank, world size); (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if grouped() else (0, 1)


def agree(decide: Callable[[], T]) -> T:
    """Call `decide` on rank 0 and return its value on every rank; a collective.

    Raises:
        CheckpointError: on every rank, when `decide` raises anything at all; otherwise the others would wait for ever.

    """
    rank, size = place()
    box: list[Any] = [None, None]
    cause: Exception | None = None
    if rank == 0:
        try:
            box[0] = decide()
        except Exception as error:  # noqa: BLE001 - the other ranks wait for an answer, whatever went wrong
            cause = error
            box[1] = str(error) if isinstance(error, RallypointError) else f"{type(error).__name__}: {error}"
    if size > 1:
        box = signed.broadcast(box, 0)
    value, refusal = box
    if refusal is not None:
        raise CheckpointError(refusal) from cause
    decided: T = value
    return decided
