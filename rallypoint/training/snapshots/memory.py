"""One rank's snapshots in shared memory: written double-buffered, complete or not there, beside the training.

`take` captures a state and returns as soon as the script may go on; what only optimizers change is copied while the next step's
forward and backward pass run, and `copied` tells when that is done. Digest and header follow; `wait` returns when the snapshot
is complete. A snapshot is never given up for another: the next `take` waits for the last one.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rallypoint.checkpoint.errors import CheckpointError, NoRoomError
from rallypoint.checkpoint.memory import Held, Part, area_of, held
from rallypoint.training.snapshots.buffers import Buffer, Buffers
from rallypoint.training.snapshots.capture import Capture, Capturer, Layout, optimizers_of, state_size
from rallypoint.training.snapshots.copy_threads import CopyThreadPool
from rallypoint.training.snapshots.device_copies import Marks
from rallypoint.wire import codec
from rallypoint.wire.codec import dumps
from rallypoint.wire.fence import Fence
from rallypoint.wire.replica import SOCKET, Offer, Settled
from rallypoint.wire.unix import reachable

__all__ = ["Replicas", "SnapshotMemory", "Writer"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Who writes: place in the world, and fence as its job counts."""

    job: str
    fence: Fence
    rank: int
    local_rank: int
    world_size: int


class SnapshotMemory:
    """The snapshots of one rank.

    Args:
        folder: in shared memory; see `checkpoint/memory.py`.
        writer: who this is.
        buffers: 2, one more where snapshots are also persisted and two more with `every`: so many times the state's size is
            the cost in memory.
        every: the last two snapshots of steps that are a multiple of it stay; 0: none but the last two.
        threads: that copy.
        lazy: copy what only optimizers change while the next step runs. Not for scripts that change weights by themselves
            between a snapshot and the optimizer's next step.
        complete: called with each snapshot that is complete, in a thread of this class.

    """

    def __init__(
        self,
        folder: Path,
        writer: Writer,
        *,
        buffers: int = 2,
        every: int = 0,
        threads: int = 1,
        lazy: bool = True,
        complete: Callable[[int], None] | None = None,
    ) -> None:
        least = 4 if every else 2
        if buffers < least:
            raise CheckpointError(
                f"buffers: {buffers} is not allowed; expected at least {least}, so that a crash during a write loses "
                "no snapshot"
            )
        self.folder, self.writer, self._every = folder, writer, every
        self._buffers = Buffers(area_of(folder, writer.local_rank), buffers)
        self._capturer = Capturer(writer.rank, lazy=lazy)
        self._crew = CopyThreadPool(threads)
        # One thread, so that snapshots are completed in their order.
        self._behind = ThreadPoolExecutor(1, thread_name_prefix="rallypoint-snapshot")
        self._reserving: Future[None] | None = None
        self._last: Future[None] | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._guarded: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._complete = complete
        self._entries = (Layout(entries=(), values_at=0, whole=True), "[]")

    def reserve(self, state: Mapping[str, Any]) -> None:
        """Begin to allocate what snapshots of `state` will need, in the background; too little room is told by `take`."""
        size = state_size(state)
        self._reserving = self._behind.submit(self._buffers.reserve, size)

    def take(self, step: int, state: Mapping[str, Any]) -> None:
        """Take a snapshot of `state` after `step` finished steps; returns when the script may go on.

        Raises:
            NoRoomError: when there is no room for it. What was taken before stays.
            CheckpointError: when this writer is left over from an earlier round, or the last snapshot failed.

        """
        self.wait()
        capture = self._capturer.capture(state)
        self._reserve(capture.size)
        buffer = self._buffers.take(self.writer.fence, every=self._every)
        try:
            if capture.now:
                self._crew.copy(capture.now, buffer.data)
            for optimizer in optimizers_of(state) if capture.later else ():
                self._guard(optimizer)
            self._copied.clear()
            self._last = self._behind.submit(self._finish, step, capture, buffer, self._crew.mark(capture.later))
        except BaseException:
            self._copied.set()
            buffer.unlock()
            raise

    def prepared(self) -> None:
        """Return when what `reserve` began is done; too little room is told by `take`."""
        reserving, self._reserving = self._reserving, None
        if reserving is not None:
            try:
                reserving.result()
            except NoRoomError as error:
                _log.debug("this worker cannot allocate the buffers for snapshots in advance: %s", error)

    def wait(self) -> None:
        """Return when the last snapshot is complete; raises what went wrong with it."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def held(self) -> list[Held]:
        """Return this rank's complete snapshots, newest first, once the last is complete."""
        self.wait()
        return self.complete_ones()

    def complete_ones(self) -> list[Held]:
        """Return what is complete at this moment, newest first."""
        return held(self._buffers.area)

    def move(self, writer: Writer) -> None:
        """Go on as another rank, or in another round; the local rank, and so the buffers, stay."""
        self.wait()
        self.writer = dataclasses.replace(writer, local_rank=self.writer.local_rank)
        self._capturer.rank = writer.rank

    def close(self) -> None:
        """Complete what is under way, and end the threads; the snapshots stay."""
        try:
            self.wait()
        finally:
            for handle in self._guarded.values():
                handle.remove()
            self._behind.shutdown(wait=True)
            self._crew.close()
            self._buffers.close()

    def _reserve(self, size: int) -> None:
        self.prepared()
        self._buffers.reserve(size)

    def _guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer's next steps wait for copies under way."""
        if id(optimizer) not in self._guarded:
            self._guarded[id(optimizer)] = optimizer.register_step_pre_hook(lambda *_: self._wait_for_copies())

    def _wait_for_copies(self) -> None:
        self._copied.wait()

    def _finish(self, step: int, capture: Capture, buffer: Buffer, marks: Marks) -> None:
        try:
            try:
                self._crew.copy(capture.later, buffer.data, marks)
            finally:
                self._copied.set()
            at, size = capture.layout.values_at, capture.size
            tail = bytearray(capture.values).ljust(size - at, b"\0")
            buffer.data[at:size] = torch.frombuffer(tail, dtype=torch.uint8)
            header = self._header(step, capture, self._crew.digest(buffer.data[:size]))
            buffer.publish(header, (self.writer.fence, step))
        finally:
            buffer.unlock()
        if self._complete is not None:
            self._complete(step)

    def _header(self, step: int, capture: Capture, digest: str) -> bytes:
        layout, writer = capture.layout, self.writer
        if self._entries[0] is not layout:
            self._entries = layout, dumps(layout.entries)
        part = Part(
            job=writer.job,
            granted=writer.fence,
            step=step,
            rank=writer.rank,
            world_size=writer.world_size,
            whole=layout.whole,
            torch=str(torch.__version__),
            size=capture.size,
            digest=digest,
            values_at=layout.values_at,
            values_size=len(capture.values),
            tensors=(),
            position=capture.position,
        )
        # The list of tensors is long, and the same from step to step.
        return dumps(part).replace('"tensors": []', f'"tensors": {self._entries[1]}', 1).encode()


#: Seconds that training waits for the last offer before it makes the next. After that the neighbour may have another step than
#: the others have kept, and a lost node costs what it costs without a replica.
_PATIENCE = 120.0


class Replicas:
    """The offers of one worker.

    Args:
        folder: of its agent's snapshots.
        local_rank: whose area is offered.
        every: steps whose number is a multiple of it are offered.

    """

    def __init__(self, folder: Path, local_rank: int, every: int) -> None:
        self._folder, self._local_rank, self._every = folder, local_rank, every
        self._socket: socket.socket | None = None
        self._pending = False
        self._given_up = False

    def due(self, step: int) -> bool:
        """Return whether the snapshot of `step` is one of those that are offered."""
        return step % self._every == 0

    def offer(self, fence: Fence, step: int) -> None:
        """Offer a complete snapshot; `settle` comes before the next one."""
        if self._given_up:
            return
        try:
            if self._socket is None:
                self._socket = self._connected()
            word = Offer(local_rank=self._local_rank, fence=fence, step=step)
            self._socket.sendall(codec.dumps(word).encode() + b"\n")
        except OSError as error:
            self._give_up(f"cannot send to the agent: {error}")
        else:
            self._pending = True

    def settle(self) -> None:
        """Return when the last offer is settled; why it came to nothing the agent's log says."""
        if not self._pending or self._socket is None:
            return
        self._pending = False
        try:
            told = codec.loads(Settled, _line(self._socket))
        except (OSError, ValueError) as error:
            self._give_up(f"the agent does not respond: {error}")
            return
        if told.error:
            _log.debug("the snapshot of step %d was not copied to another node: %s", told.step, told.error)

    def close(self) -> None:
        """Hang up; what is under way goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(_PATIENCE)
            with reachable(self._folder / SOCKET) as address:
                connected.connect(address)
        except BaseException:
            connected.close()
            raise
        return connected

    def _give_up(self, why: str) -> None:
        _log.warning("snapshots of this worker are no longer copied to another node: %s", why)
        self._given_up = True
        self.close()


def _line(connected: socket.socket) -> bytes:
    text = bytearray()
    while not text.endswith(b"\n"):
        piece = connected.recv(4096)
        if not piece:
            raise ConnectionError("the agent closed the connection for snapshots")
        text += piece
    return bytes(text)
