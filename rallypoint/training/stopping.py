"""Saving before the end: a worker is asked to stop by SIGTERM and has its job's stop grace until it is killed."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

from rallypoint.training.boundaries import Boundaries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StopRequest", "stop_requested"]


def stop_requested() -> bool:
    """Return whether this worker, or any other of its process group, was asked to stop: save now, and end with 143.

    Call it once per step, on every rank, at the same place of the loop: with a process group it is a collective (one number is
    reduced), so that every rank stops at the same step and can take part in the checkpoint. Without one, the ranks of a node
    that were all asked to stop agree on a step. From the first call on SIGTERM no longer ends the process by itself; a handler
    that the script had before is still called.

    It is a step boundary, too: a job whose workers are asked to pause stands still in it, on all ranks after the same step.

    A rank that is blocked in a broken collective cannot answer; it is killed when the stop grace is over.

    Raises:
        RuntimeError: when the first call is not made in the main thread, which alone may handle signals.

    """
    _request.listen()
    _boundaries.reach()
    if _grouped():
        return _any_rank(_request.made)
    return _request.made and _boundaries.ends_here()


class StopRequest:
    """Whether SIGTERM came; `listen` before it can be known."""

    def __init__(self) -> None:
        self.made = False
        self._listens = False
        self._before: Callable[[int, FrameType | None], Any] | int | None = None

    def listen(self) -> None:
        """Handle SIGTERM from now on. Does nothing the second time."""
        if self._listens:
            return
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "stop_requested: make the first call in the main thread, because Python handles signals only there"
            )
        self._before = signal.signal(signal.SIGTERM, self._note)
        self._listens = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.made = True
        if callable(self._before):
            self._before(number, frame)


_request = StopRequest()
_boundaries = Boundaries(lambda: _request.made)


def _grouped() -> bool:
    # A process group without torch there cannot be: a script that does without it shall not import it here.
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _any_rank(here: bool) -> bool:  # noqa: FBT001  one flag, and nothing to confuse it with
    import torch  # noqa: PLC0415  as above
    from torch import distributed as dist  # noqa: PLC0415

    devices = {device.type for device in dist.group.WORLD._device_types}  # type: ignore[union-attr]  # noqa: SLF001  the backend's name may be of another
    device = "cpu" if "cpu" in devices else "cuda"
    flag = torch.tensor([int(here)], dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
