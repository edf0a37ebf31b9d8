"""The last committed states of this rank, in memory: what a step that failed goes back to.

Theory of operation
===================

Ranks commit at the same boundaries, but not at the same moment: when a step fails, one rank may have committed it and another
not. They differ by one at the most, so with the last two of each there is always one that all have.

A commit is one flat piece of memory (every tensor of the state, or this rank's shard of it) and a description of it. Where the
agent offers a folder of shared memory the pieces are files there, and outlive this process: whoever takes its place on this
node finds them, its shards and its random states with them. A number that is written last says that a piece is complete.

What nobody but the state's optimizers changes (their parameters, and their own state) is copied by other threads while the next
step's forward and backward pass run, and the optimizer's next step waits for it. That is why there are three pieces: a process
that is killed meanwhile leaves the commit unfinished, while another rank may have finished the step after it. Should a weight
have been changed all the same, its version tells: that commit is dropped, and from then on all is copied at once. A state that
is copied within a millisecond is copied at once in any case.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from rallypoint.training import values
from rallypoint.training.commit_slots import Form, Held, Slot
from rallypoint.training.randomness import random_state, restore_random_state
from rallypoint.training.signed import sign, verify
from rallypoint.training.snapshots.capture import guarded_by, optimizers_of, state_size
from rallypoint.training.snapshots.copy_threads import CopyThreadPool, Piece
from rallypoint.training.snapshots.device_copies import Marks

__all__ = ["SLOTS", "Commits", "Held"]

_log = logging.getLogger(__name__)

#: How many commits stay: the last two, and one that is being written.
SLOTS = 3

_ALIGNED = 64

#: Below so many bytes copying at once costs less than a millisecond, and a process that is killed then loses nothing.
_LAZY_FROM = 4 << 20


@dataclass(frozen=True, kw_only=True)
class _Description:
    """What lies in the memory: the state with marks for tensors, and each tensor's place."""

    skeletons: dict[str, Any]
    form: Form
    random: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Rest:
    """A commit of which a part is copied later; `versions` of the tensors as they were committed."""

    slot: Slot
    pieces: Sequence[Piece]
    into: torch.Tensor
    marks: Marks
    versions: Sequence[int]
    text: bytes
    number: int
    rank: int
    world_size: int
    step: int


class Commits:
    """Takes, keeps and gives back the commits of one rank.

    Args:
        folder: where they outlive this process; None keeps them in it.
        name: of this rank's place on its node.
        attempt: those of another are passed over.
        threads: that copy.

    """

    def __init__(self, folder: Path | None, name: str, attempt: int, *, threads: int = 1) -> None:
        paths = [None if folder is None else folder / f"{name}.{i}" for i in range(SLOTS)]
        self._slots = [Slot(path, attempt) for path in paths]
        self._form: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
        self._places: Form = ()
        self._data_bytes = 0
        self._lazy = True
        self._crew = CopyThreadPool(threads)
        self._behind = ThreadPoolExecutor(1, thread_name_prefix="rallypoint-commit")
        self._under_way: Future[None] | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._guards: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._into: Slot | None = None

    def held(self) -> tuple[Held, ...]:
        """Return the complete commits, the newest first, once the last is complete."""
        self.settle()
        found = [held for slot in self._slots if (held := slot.held()) is not None]
        return tuple(sorted(found, key=lambda held: -held.number))

    def take(self, state: Mapping[str, Any], number: int, rank: int, world_size: int, *, lazy: bool = True) -> None:
        """Commit the state; the oldest commit goes for it. On a GPU this waits for what runs there.

        `lazy`: what only optimizers change may be copied later. Where the folder has no room the commit stays in this process,
        and the log says so.
        """
        self.settle()
        tensors: dict[str, torch.Tensor] = {}
        skeletons = {name: values.split(values.state_of(value), _key(name), tensors) for name, value in state.items()}
        self._lay_out(tensors)
        description = _Description(skeletons=skeletons, form=self._places, random=_packed(random_state()))
        text = pickle.dumps(description, protocol=5)
        slot = self._oldest()
        slot.begin(self._data_bytes, len(text))
        now, later = self._sorted(tensors, guarded_by(optimizers_of(state)) if lazy and self._lazy else frozenset())
        into = slot.data(self._data_bytes)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # whatever stream the script computes in, the threads read what it has computed
        self._crew.copy(now, into)
        if not later:
            slot.finish(text, number, rank, world_size, _step_of(state))
            return
        for optimizer in optimizers_of(state):
            self._guard(optimizer)
        versions = [piece.source._version for piece in later]  # noqa: SLF001  torch's word for how often it was changed
        rest = _Rest(
            slot=slot,
            pieces=later,
            into=into,
            marks=self._crew.mark(later),
            versions=versions,
            text=text,
            number=number,
            rank=rank,
            world_size=world_size,
            step=_step_of(state),
        )
        self._copied.clear()
        self._under_way = self._behind.submit(self._finish, rest)

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Begin to allocate and fault in, in the background, what the next commits of `state` will need."""
        size = state_size(state) + (1 << 16)
        if size >= _LAZY_FROM and self._under_way is None:
            self._under_way = self._behind.submit(self._reserve, size)

    def settle(self) -> None:
        """Return when the last commit is complete."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Complete what is under way, and end the threads; the commits stay."""
        self.settle()
        for handle in self._guards.values():
            handle.remove()
        self._guards.clear()
        self._behind.shutdown(wait=True)
        self._crew.close()
        for slot in self._slots:
            slot.close()

    def restore(self, number: int, state: MutableMapping[str, Any], rank: int, *, random: bool = True) -> None:
        """Put the commit `number` back into the state; its random states too where they were this rank's."""
        slot, held = self._slot(number)
        description: _Description = pickle.loads(slot.text())  # noqa: S301  we wrote it
        views = slot.views(description.form)
        for name in state:
            _put(state, name, description.skeletons[name], views)
        if random and held.rank == rank:
            restore_random_state(_unpacked(description.random))

    def forget_above(self, number: int) -> None:
        """Forget what was committed after `number`: the world has gone back."""
        self.settle()
        for slot in self._slots:
            held = slot.held()
            if held is not None and held.number > number:
                slot.clear()

    def renumber(self, number: int, to: int) -> None:
        """Give a commit another number: that of the round in which it was agreed on."""
        self._slot(number)[0].renumber(to)

    def flat(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a commit's memory and its signed description, to be sent."""
        slot, held = self._slot(number)
        text = torch.frombuffer(bytearray(sign(slot.text())), dtype=torch.uint8)
        return slot.data(held.data_bytes), text

    def receive(self, data_bytes: int, text_bytes: int, *, spare: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return memory for another rank's commit, in the place of one of ours that is not `spare`; then `received`."""
        self.settle()
        self._into = self._oldest(spare=spare)
        self._into.begin(data_bytes, text_bytes)
        return self._into.data(data_bytes), torch.empty(text_bytes, dtype=torch.uint8)

    def received(self, text: torch.Tensor, number: int, source: int, world_size: int, step: int = -1) -> None:
        """Note that what `receive` gave is filled; it was the commit `number` of rank `source`.

        Raises:
            CheckpointError: if no worker of this job has signed the description; it is not unpickled.

        """
        assert self._into is not None
        self._into.finish(verify(bytes(text.numpy())), number, source, world_size, step)

    def dropped(self) -> None:
        """Note that what `receive` gave is not needed."""
        assert self._into is not None
        self._into.clear()

    # --- Behind the training -----------------------------------------------------------------------------------------------

    def _finish(self, rest: _Rest) -> None:
        try:
            self._crew.copy(rest.pieces, rest.into, rest.marks)
        finally:
            changed = [piece.source._version for piece in rest.pieces] != list(rest.versions)  # noqa: SLF001  as above
            self._copied.set()
        if changed:
            self._lazy = False
            _log.warning(
                "dropped commit %d, because the script changed a weight while the commit copied the weights; from now on, "
                "State.commit copies all tensors before it returns",
                rest.number,
            )
            return
        rest.slot.finish(rest.text, rest.number, rest.rank, rest.world_size, rest.step)

    def _reserve(self, size: int) -> None:
        for slot in self._slots:
            slot.reserve(size)

    def _guard(self, optimizer: Optimizer) -> None:
        """Let the optimizer's next steps wait for copies under way."""
        if id(optimizer) not in self._guards:
            self._guards[id(optimizer)] = optimizer.register_step_pre_hook(lambda *_: self._wait_for_copies())

    def _wait_for_copies(self) -> None:
        self._copied.wait()

    # --- Which memory ------------------------------------------------------------------------------------------------------

    def _oldest(self, *, spare: int = -1) -> Slot:
        ages = [(-1 if (held := slot.held()) is None else held.number, slot) for slot in self._slots]
        return min((one for one in ages if one[0] < 0 or one[0] != spare), key=lambda one: one[0])[1]

    def _slot(self, number: int) -> tuple[Slot, Held]:
        self.settle()
        for slot in self._slots:
            held = slot.held()
            if held is not None and held.number == number:
                return slot, held
        raise LookupError(f"commit {number} does not exist on this rank")

    def _lay_out(self, tensors: Mapping[str, torch.Tensor]) -> None:
        form = [(key, tensor.dtype, tuple(_local(tensor).shape)) for key, tensor in tensors.items()]
        if form == self._form:
            return
        places, at = [], 0
        for key, dtype, shape in form:
            places.append((key, dtype, shape, at))
            size = _local(tensors[key]).numel() * dtype.itemsize
            at += -(-size // _ALIGNED) * _ALIGNED
        self._form, self._places, self._data_bytes = form, tuple(places), at

    def _sorted(self, tensors: Mapping[str, torch.Tensor], guarded: frozenset[int]) -> tuple[list[Piece], list[Piece]]:
        """Return what must be copied now, and what may be copied later."""
        now: list[Piece] = []
        later: list[Piece] = []
        for (_, _, _, at), tensor in zip(self._places, tensors.values(), strict=True):
            source = _local(tensor)
            size = source.numel() * source.element_size()
            if size:
                plain = source.device.type == "cpu" and source.is_contiguous()
                piece = Piece(at, size, source.data_ptr() if plain else 0, source)
                (later if source.data_ptr() in guarded and not source.is_inference() else now).append(piece)
        if sum(piece.size for piece in later) < _LAZY_FROM:
            return [*now, *later], []
        return now, later


def _step_of(state: Mapping[str, Any]) -> int:
    step = state.get("step")
    return step if isinstance(step, int) else -1


@dataclass(frozen=True)
class _Bytes:
    """A tensor of bytes: torch's own way to pickle one takes longer than all the rest of a commit."""

    content: bytes


def _packed(random: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _Bytes(value.numpy().tobytes()) if isinstance(value, torch.Tensor) and value.dtype == torch.uint8 else value
        for name, value in random.items()
    }


def _unpacked(random: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: torch.frombuffer(bytearray(value.content), dtype=torch.uint8) if isinstance(value, _Bytes) else value
        for name, value in random.items()
    }


def _key(name: str) -> str:
    return f"state/{name}"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _put(state: MutableMapping[str, Any], name: str, skeleton: Any, views: Mapping[str, torch.Tensor]) -> None:
    """Put one entry back: into its tensors where they are, into new ones where an optimizer has none yet."""
    present: dict[str, torch.Tensor] = {}
    values.split(values.state_of(state[name]), _key(name), present)
    marked = values.marks(skeleton)
    if any(not _fits(present.get(mark.key), views[mark.key]) for mark in marked):
        present = values.targets(skeleton, state[name], _key(name))
    with torch.no_grad():
        for mark in marked:
            _local(present[mark.key]).copy_(views[mark.key])
    values.restore(state, name, values.join(skeleton, present))


def _fits(tensor: torch.Tensor | None, view: torch.Tensor) -> bool:
    return tensor is not None and _local(tensor).shape == view.shape and tensor.dtype == view.dtype
