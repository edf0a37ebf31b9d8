"""A state at one step boundary, as a list of copies to make: which at once, and which until the next optimizer step."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from rallypoint.checkpoint.memory import TensorEntry
from rallypoint.training import values
from rallypoint.training.randomness import random_state
from rallypoint.training.snapshots.copy_threads import Piece
from rallypoint.training.snapshots.digest import ROW, rounded
from rallypoint.training.values import position_of

__all__ = ["Capture", "Capturer", "Layout", "guarded_by", "optimizers_of", "random_key", "state_key", "state_size"]

_ALIGNED = 64

_Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where each tensor lies in a buffer; the same from step to step."""

    entries: tuple[TensorEntry, ...]
    values_at: int
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Capture:
    """One step boundary.

    Attributes:
        layout: where everything goes.
        now: must be copied before the script goes on.
        later: must be copied before the next step of an optimizer.
        values: all that is not a tensor, pickled.
        position: what of that tells where in the data it is.
    """

    layout: Layout
    now: tuple[Piece, ...]
    later: tuple[Piece, ...]
    values: bytes
    position: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes in the buffer, in whole rows of the digest."""
        return rounded(self.layout.values_at + len(self.values))


def state_key(name: str) -> str:
    """Return how an entry of the state is called in front of its tensors' keys."""
    return f"state/{name}"


def random_key(rank: int) -> str:
    """Return how the random states of a rank are called."""
    return f"random/{rank}"


class Capturer:
    """Captures one state again and again; the layout is worked out anew only when a tensor has changed its form.

    Args:
        lazy: what only optimizers change is copied while the next step's forward and backward pass run.

    """

    def __init__(self, rank: int, *, lazy: bool) -> None:
        self.rank, self._lazy = rank, lazy
        self._form: list[tuple[str, torch.dtype, torch.Size]] = []
        self._layout = Layout(entries=(), values_at=0, whole=True)

    def capture(self, state: Mapping[str, Any]) -> Capture:
        """Return what is to be copied of `state` as it is now."""
        tensors: _Tensors = {}
        kept = {name: values.split(values.state_of(value), state_key(name), tensors) for name, value in state.items()}
        random = _random(random_key(self.rank), tensors)
        layout = self._laid_out(tensors)
        guarded = guarded_by(optimizers_of(state)) if self._lazy else frozenset()
        now: list[Piece] = []
        later: list[Piece] = []
        for entry, tensor in zip(layout.entries, tensors.values(), strict=True):
            if entry.size:
                piece = _piece(entry, _local(tensor))
                (later if piece.source.data_ptr() in guarded else now).append(piece)
        content = pickle.dumps({"kept": kept, "random": random}, protocol=5)
        return Capture(layout=layout, now=tuple(now), later=tuple(later), values=content, position=position_of(kept))

    def _laid_out(self, tensors: _Tensors) -> Layout:
        form = [(key, tensor.dtype, tensor.shape) for key, tensor in tensors.items()]
        if form != self._form:
            self._form, self._layout = form, _lay_out(tensors)
        return self._layout


def guarded_by(optimizers: Iterable[Optimizer]) -> frozenset[int]:
    """Return the addresses of what nobody but these optimizers changes."""
    addresses: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            addresses.update(_local(parameter).data_ptr() for parameter in group["params"])
        for kept in optimizer.state.values():
            addresses.update(_local(item).data_ptr() for item in kept.values() if isinstance(item, torch.Tensor))
    return frozenset(addresses)


def optimizers_of(state: Mapping[str, Any]) -> list[Optimizer]:
    """Return the entries that are torch's optimizers: whoever steps them can be made to wait.

    One that only passes steps on to another (accelerate's, for one) was never set up as an optimizer, and has no hooks.
    """
    return [value for value in state.values() if isinstance(value, Optimizer) and hasattr(value, "_optimizer_step_pre_hooks")]


def state_size(state: Mapping[str, Any]) -> int:
    """Return the bytes that a snapshot of `state` takes; an optimizer without state is taken to be of Adam's kind."""
    tensors: _Tensors = {}
    for name, value in state.items():
        values.split(values.state_of(value), state_key(name), tensors)
    size = sum(-(-_bytes(_local(tensor)) // _ALIGNED) * _ALIGNED for tensor in tensors.values())
    for optimizer in optimizers_of(state):
        if not optimizer.state:
            size += 2 * sum(_bytes(_local(p)) + 2 * _ALIGNED for group in optimizer.param_groups for p in group["params"])
    # Random states, and what is not a tensor.
    return rounded(size) + 16 * ROW


def _random(key: str, tensors: _Tensors) -> dict[str, Any]:
    """Return the random states with marks for their tensors; what is around those is left as it is, for it is long."""
    kept = random_state()
    found = [name for name, value in kept.items() if isinstance(value, torch.Tensor)]
    return {**kept, **values.split({name: kept[name] for name in found}, key, tensors)}


def _lay_out(tensors: _Tensors) -> Layout:
    entries, offset = [], 0
    for key, tensor in tensors.items():
        entry = _entry(key, tensor, offset)
        entries.append(entry)
        offset += -(-entry.size // _ALIGNED) * _ALIGNED
    return Layout(entries=tuple(entries), values_at=offset, whole=not any(entry.sharded for entry in entries))


def _entry(key: str, tensor: torch.Tensor, offset: int) -> TensorEntry:
    local = _local(tensor)
    entry = TensorEntry(
        key=key,
        dtype=str(local.dtype).removeprefix("torch."),
        shape=tuple(local.shape),
        whole=tuple(tensor.shape),
        at=(0,) * local.dim(),
        offset=offset,
        size=_bytes(local),
    )
    if not isinstance(tensor, DTensor) or entry.shape == entry.whole:
        return entry
    chunks = tensor.__create_chunk_list__()
    at = tuple(chunks[0].offsets) if chunks else entry.at
    return dataclasses.replace(entry, at=at, sharded=True)


def _piece(entry: TensorEntry, local: torch.Tensor) -> Piece:
    plain = local.device.type == "cpu" and local.is_contiguous()
    return Piece(entry.offset, entry.size, local.data_ptr() if plain else 0, local)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        local: torch.Tensor = tensor.to_local()
        return local
    return tensor


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
