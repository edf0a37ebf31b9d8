"""Copies from a GPU, against stand-ins for torch.cuda that are as strict: their order, and the memory that they go to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rallypoint.training.snapshots.device_copies import DeviceCopies, Registration

GPU = torch.device("cuda", 0)


class Cuda:
    """`torch.cuda`: notes what is done in which stream, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.current = "script"

    def current_stream(self, device: torch.device) -> str:
        return f"{self.current} stream of {device}"

    def Event(self) -> Any:  # noqa: N802
        return SimpleNamespace(record=lambda stream: self.done.append(f"mark {stream}"))

    def Stream(self, device: torch.device) -> Any:  # noqa: N802
        return SimpleNamespace(
            name="copy",
            wait_event=lambda _: self.done.append("wait for the mark"),
            wait_stream=lambda stream: self.done.append(f"wait for {stream}"),
            synchronize=lambda: self.done.append("synchronize"),
        )

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before


def test_a_later_copy_waits_for_what_was_computed_before_and_for_nothing_else() -> None:
    """The mark is set in the script's stream; the copy is made in another one, from another thread."""
    cuda = Cuda()
    copies = DeviceCopies(cuda)
    source: Any = SimpleNamespace(is_cuda=True, device=GPU)

    marks = copies.mark([source, source, torch.ones(2)])
    copies.run([(GPU, lambda: cuda.done.append(f"copy in {cuda.current}"))], marks)

    assert cuda.done == ["mark script stream of cuda:0", "wait for the mark", "copy in copy", "synchronize"]


def test_a_copy_at_once_is_behind_the_callers_own_stream() -> None:
    """Without a mark."""
    cuda = Cuda()
    DeviceCopies(cuda).run([(GPU, lambda: cuda.done.append("copy"))] * 2, {})

    assert cuda.done == ["wait for script stream of cuda:0", "copy", "copy", "synchronize"]


class Runtime:
    """CUDA's runtime: refuses memory that is registered already, and to forget memory that is not."""

    def __init__(self, *, initialized: bool = True, refuses: int = 0) -> None:
        self.initialized, self.refuses = initialized, refuses
        self.registered: dict[int, int] = {}

    def is_initialized(self) -> bool:
        return self.initialized

    def cudart(self) -> Runtime:
        assert self.initialized, "the context would be made here"
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        if self.refuses:
            return self.refuses
        if address in self.registered:
            return 712
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        return 713 if self.registered.pop(address, None) is None else 0


def test_memory_is_registered_once_and_forgotten_before_another_is() -> None:
    """What is unmapped while it is registered would be written to by the device."""
    runtime, small, large = Runtime(), torch.zeros(8), torch.zeros(16)
    registration = Registration(runtime)

    registration.hold(small)
    assert runtime.registered == {small.data_ptr(): 32}
    registration.hold(large)
    assert runtime.registered == {large.data_ptr(): 64}
    registration.release()
    registration.release()
    assert (runtime.registered, registration.held) == ({}, False)


@pytest.mark.parametrize("runtime", [Runtime(initialized=False), Runtime(refuses=800)], ids=["no CUDA here", "not permitted"])
def test_without_it_copies_are_slower_and_nothing_else(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    """A process that does not use CUDA makes no context for it; a container may not allow it."""
    blamed: list[str] = []

    def launch() -> None:
        blamed.append("a kernel")
        raise RuntimeError("CUDA error: operation not permitted")

    registration = Registration(runtime, launch)

    with caplog.at_level(logging.INFO):
        registration.hold(torch.zeros(8))
        registration.release()

    assert not registration.held
    assert blamed == (["a kernel"] if runtime.initialized else []), "the error is left to the script's next kernel"
    assert ("copies from the GPU to this memory are slower" in caplog.text) == runtime.initialized
