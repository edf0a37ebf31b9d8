"""Memory registered with CUDA, so that a device writes to it directly.

A copy from a device to ordinary memory goes through a small buffer of the driver, at a fraction of the speed of the bus. Shared
memory that a snapshot or a commit is copied to is registered once, when it is prepared.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Registration"]

_log = logging.getLogger(__name__)


def _launch() -> None:
    torch.zeros(1, device="cuda").add_(1)


class Registration:
    """The registration of one piece of memory at a time; nothing is registered in a process that does not use CUDA.

    `cuda` is `torch.cuda`, `launch` starts any kernel. Memory must be released before it is unmapped: the device would write
    to whatever comes there.
    """

    def __init__(self, cuda: Any = torch.cuda, launch: Callable[[], object] = _launch) -> None:
        self._cuda, self._launch = cuda, launch
        self._address = 0

    @property
    def held(self) -> bool:
        """Whether memory is registered."""
        return self._address != 0

    def hold(self, data: torch.Tensor) -> None:
        """Register the memory of `data`; where CUDA refuses it stays as it is, and copies are slower."""
        self.release()
        size = data.numel() * data.element_size()
        if size == 0 or not self._cuda.is_initialized():
            return
        code = int(self._cuda.cudart().cudaHostRegister(data.data_ptr(), size, 0))
        if code == 0:
            self._address = data.data_ptr()
            return
        _log.info(
            "CUDA cannot pin %d bytes of shared memory (CUDA error %d), so copies from the GPU to this memory are slower",
            size,
            code,
        )
        self._forget_error()

    def release(self) -> None:
        """Undo it."""
        address, self._address = self._address, 0
        if address and int(self._cuda.cudart().cudaHostUnregister(address)) != 0:
            self._forget_error()

    def _forget_error(self) -> None:
        """Clear the thread's last CUDA error, which the next kernel of the script would raise."""
        with contextlib.suppress(RuntimeError):
            self._launch()
