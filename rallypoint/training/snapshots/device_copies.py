"""Copies from CUDA devices on streams of their own, and memory registered with CUDA, so that a device writes to it directly.

A stream is behind what the script has computed, and beside what it computes next. A copy from a device to ordinary memory goes
through a small buffer of the driver, at a fraction of the speed of the bus. Shared memory that a snapshot or a commit is copied
to is registered once, when it is prepared.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["DeviceCopies", "Marks", "Registration"]

#: By device, the moment in the script's stream up to which the state was computed.
Marks = Mapping[torch.device, Any]

_log = logging.getLogger(__name__)


class DeviceCopies:
    """The copy streams of one process, one for each device that it copies from; `cuda` is `torch.cuda`."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._streams: dict[torch.device, Any] = {}

    def mark(self, sources: Iterable[torch.Tensor]) -> Marks:
        """Return how far the calling thread's streams have come, on the devices of `sources`."""
        marks: dict[torch.device, Any] = {}
        for device in {source.device for source in sources if source.is_cuda}:
            marks[device] = self._cuda.Event()
            marks[device].record(self._cuda.current_stream(device))
        return marks

    def run(self, copies: Sequence[tuple[torch.device, Callable[[], object]]], marks: Marks) -> None:
        """Make copies behind the marks of their devices; returns when all are done.

        A device without a mark is copied from behind what the calling thread has computed there.
        """
        used = {device: self._stream(device) for device, _ in copies}
        for device, stream in used.items():
            if device in marks:
                stream.wait_event(marks[device])
            else:
                stream.wait_stream(self._cuda.current_stream(device))
        for device, copy in copies:
            with self._cuda.stream(used[device]):
                copy()
        for stream in used.values():
            stream.synchronize()

    def _stream(self, device: torch.device) -> Any:
        if device not in self._streams:
            self._streams[device] = self._cuda.Stream(device)
        return self._streams[device]


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
