"""Exchange of Python values between ranks, signed with a key that all workers of a job have; and one decision for all ranks.

torch's object collectives unpickle whatever arrives. A process that reaches the store of a round, such as one of another user
of the machine, can take a rank's place in the group, and its pickle would run as the job's user. Here a value is unpickled only
if it was signed by a worker of this job. Workers get the key from their agent, and instances of simple roles derive theirs from
the secret of all roles. In a script that Rallypoint has not started nothing is proven, as in torch's collectives.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed as dist

from rallypoint.training.errors import CheckpointError
from rallypoint.wire import env
from rallypoint.wire.errors import RallypointError

__all__ = ["agree", "all_gather", "broadcast", "grouped", "place", "sign", "verify"]

T = TypeVar("T")

#: Bytes of a signature.
_SIZE = 32

#: Bytes of the largest value; a foreign rank could name any size.
_LARGEST = 1 << 30


def sign(content: bytes) -> bytes:
    """Return the content with its signature in front."""
    return _signature(content) + content


def verify(signed: bytes) -> bytes:
    """Return the content; raises `CheckpointError` if another process than a worker of this job has signed it."""
    content = signed[_SIZE:]
    if not hmac.compare_digest(signed[:_SIZE], _signature(content)):
        raise CheckpointError(
            "a value of another rank is not signed by a worker of this job; another process has joined the process group"
        )
    return content


def all_gather(mine: T) -> list[T]:
    """Return the values of all ranks, by rank. A collective."""
    content = _tensor(sign(pickle.dumps(mine, protocol=5)))
    size = torch.tensor([content.numel()], dtype=torch.int64, device=content.device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    lengths = [_length(one) for one in sizes]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=content.device)
    padded[: content.numel()] = content
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return [_value(part[:length]) for part, length in zip(parts, lengths, strict=True)]


def broadcast(value: T, source: int) -> T:
    """Return the value of the rank `source`; those of other ranks are not used. A collective."""
    _key()  # without one every rank raises, and none waits for the others
    sends = dist.get_rank() == source
    content = _tensor(sign(pickle.dumps(value, protocol=5)) if sends else b"")
    size = torch.tensor([content.numel()], dtype=torch.int64, device=content.device)
    dist.broadcast(size, src=source)
    if not sends:
        content = torch.empty(_length(size), dtype=torch.uint8, device=content.device)
    dist.broadcast(content, src=source)
    received: T = value if sends else _value(content)
    return received


def _signature(content: bytes) -> bytes:
    return hmac.digest(_key(), content, hashlib.sha256)


def _key() -> bytes:
    """Return the key of this job; raises `CheckpointError` if other ranks of the job could not prove who they are."""
    given, path, text = (os.environ.get(name, "") for name in (env.EXCHANGE_KEY, env.ROLES_SECRET_FILE, env.ROLES_SECRET))
    if given:
        return given.encode()
    if path or text:
        return _derived(path, text)
    size = place()[1]
    if env.JOB_NAME in os.environ and size > 1:
        raise CheckpointError(
            f"{env.EXCHANGE_KEY}: not set; expected a key with which the {size} ranks of this process group sign the values "
            f"that they send to each other. Set {env.EXCHANGE_KEY} to the same random text in all {size} processes"
        )
    return b"none"


@functools.lru_cache(maxsize=1)
def _derived(path: str, text: str) -> bytes:
    """Return the key of an instance of a simple role, which has the secret of all roles, or the path of a file with it."""
    from rallypoint.training.roles.context import roles_secret  # noqa: PLC0415  only simple roles need what this imports

    try:
        secret = roles_secret({env.ROLES_SECRET_FILE: path, env.ROLES_SECRET: text})
    except RallypointError as error:
        raise CheckpointError(str(error)) from error
    return hmac.digest(secret, b"exchange between workers", hashlib.sha256)


def _tensor(content: bytes) -> torch.Tensor:
    made = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    return made.cuda() if dist.get_backend() == "nccl" else made


def _length(size: torch.Tensor) -> int:
    length = int(size.item())
    if not _SIZE <= length <= _LARGEST:
        raise CheckpointError(f"a rank sends a value of {length} bytes; expected {_SIZE} to {_LARGEST}")
    return length


def _value(content: torch.Tensor) -> Any:
    return pickle.loads(verify(content.cpu().numpy().tobytes()))  # noqa: S301  a worker of this job has signed it


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
        box = broadcast(box, 0)
    value, refusal = box
    if refusal is not None:
        raise CheckpointError(refusal) from cause
    decided: T = value
    return decided
