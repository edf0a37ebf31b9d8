"""A state as two things: its tensors by key, for torch.distributed.checkpoint, and everything else around them.

`torch.distributed.checkpoint` alone turns the keys of nested dictionaries into text, which an optimizer's state does not
survive. So the structure is kept as it is, with a mark where each tensor was.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from rallypoint.training.errors import CheckpointError
from rallypoint.training.reproducibility import bare_module

__all__ = ["TensorMark", "join", "marks", "position_of", "restore", "split", "state_of", "targets"]

#: Characters of JSON that one entry may have: what is longer is no position.
_LONGEST = 2000

_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class TensorMark:
    """Stands where a tensor was; `shape` is the whole tensor's, whatever part of it a rank holds."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def state_of(value: Any) -> Any:
    """Return what is to be kept of one entry of the user's state."""
    if isinstance(value, nn.Module):
        return bare_module(value).state_dict()
    return value.state_dict() if _is_stateful(value) else value


def restore(state: MutableMapping[str, Any], name: str, loaded: Any) -> None:
    """Put `loaded` into entry `name` of the user's state: into the object, into the tensor, or else in its place."""
    value = state[name]
    if isinstance(value, nn.Module):
        bare_module(value).load_state_dict(loaded)
    elif _is_stateful(value):
        value.load_state_dict(loaded)
    elif isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(loaded)
    else:
        state[name] = loaded


def split(value: Any, key: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` with a mark for each tensor, and put those into `tensors`.

    Raises:
        CheckpointError: when two keys of one dictionary are the same as text.

    """

    def mark(tensor: torch.Tensor, at: str) -> TensorMark:
        if at in tensors:
            raise CheckpointError(
                f"state: two tensors get the name {at}, because two keys of a dictionary have the same str(); rename one key"
            )
        tensors[at] = tensor.detach()
        return TensorMark(at, tuple(tensor.shape), tensor.dtype)

    return _walk(value, key, lambda leaf, at: mark(leaf, at) if isinstance(leaf, torch.Tensor) else leaf)


def targets(skeleton: Any, value: Any, key: str) -> dict[str, torch.Tensor]:
    """Return an empty tensor for each mark in `skeleton`, laid out as the user's entry `value` needs it on this rank.

    `skeleton` and `key` are those of the `split` that was saved.
    """
    present: dict[str, torch.Tensor] = {}
    split(state_of(value), key, present)
    return {mark.key: _empty(mark, present.get(mark.key, _parameter(mark, value, key))) for mark in marks(skeleton)}


def marks(skeleton: Any) -> list[TensorMark]:
    """Return the marks in what `split` returned, in order."""
    found: list[TensorMark] = []
    _walk(skeleton, "", lambda leaf, _: found.append(leaf) if isinstance(leaf, TensorMark) else None)
    return found


def join(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that `split` took apart."""
    return _walk(skeleton, "", lambda leaf, _: tensors[leaf.key] if isinstance(leaf, TensorMark) else leaf)


def _walk(value: Any, key: str, leaf: Callable[[Any, str], Any]) -> Any:
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps the class and what hangs on it, such as `_metadata` of a module's state
        for name, item in value.items():
            copied[name] = _walk(item, f"{key}/{name}", leaf)
        return copied
    if isinstance(value, (list, tuple)):
        items = [_walk(item, f"{key}/{index}", leaf) for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return leaf(value, key)


def _empty(mark: TensorMark, like: torch.Tensor | None) -> torch.Tensor:
    if isinstance(like, DTensor) and tuple(like.shape) == mark.shape:
        return torch.empty_like(like, dtype=mark.dtype)
    return torch.empty(mark.shape, dtype=mark.dtype)


def _parameter(mark: TensorMark, value: Any, key: str) -> torch.Tensor | None:
    """Return the parameter that an optimizer's `state/<index>/...` belongs to: a fresh optimizer has no state to go by."""
    kind, _, rest = mark.key.removeprefix(f"{key}/").partition("/")
    index = rest.partition("/")[0]
    if not isinstance(value, Optimizer) or kind != "state" or not index.isdecimal():
        return None
    parameters = [parameter for group in value.param_groups for parameter in group["params"]]
    return parameters[int(index)] if int(index) < len(parameters) else None


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def position_of(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state, as they are kept, that are nothing but short plain values."""
    found = {name: value for name, value in kept.items() if _plain(value)}
    return {name: value for name, value in found.items() if len(json.dumps(value)) <= _LONGEST}


def _plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(_plain, value))  # type: ignore[call-overload]
    return type(value) in _SCALARS and (not isinstance(value, float) or math.isfinite(value))
