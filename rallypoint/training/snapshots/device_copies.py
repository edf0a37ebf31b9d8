"""Copies from CUDA devices on streams of their own: behind what the script has computed, beside what it computes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["DeviceCopies", "Marks"]

#: By device, the moment in the script's stream up to which the state was computed.
Marks = Mapping[torch.device, Any]


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
