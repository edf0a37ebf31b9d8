"""What the ranks of a world tell and give each other while they load. Collectives, all of them."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import distributed as dist

from rallypoint.checkpoint.errors import DamagedCheckpointError
from rallypoint.checkpoint.free_memory import require_memory
from rallypoint.checkpoint.memory import Held, Part, everything
from rallypoint.training import signed
from rallypoint.training.signed import place
from rallypoint.training.snapshots.copy_threads import CopyThreadPool
from rallypoint.training.snapshots.parts import OpenPart, proven
from rallypoint.wire.codec import dumps
from rallypoint.wire.private import private_folder

__all__ = ["gather", "node_name", "send_missing", "send_own", "send_whole"]

_log = logging.getLogger(__name__)

#: Bytes of one broadcast.
_PIECE = 64 << 20

T = TypeVar("T")

#: The header of no part.
_NONE: tuple[Part | None, bytes] = (None, b"")


def gather(mine: T) -> list[T]:
    """Return what every rank says, by rank."""
    _, size = place()
    if size == 1:
        return [mine]
    return signed.all_gather(mine)


def node_name(folder: Path) -> str:
    """Return a name of the memory that `folder` lies in, equal on all ranks that see the same."""
    return f"{_boot_id()}:{folder}"


@functools.cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def send_whole(parts: Sequence[OpenPart], crew: CopyThreadPool) -> list[OpenPart]:
    """Give a whole state to the ranks that have none; returns it on every rank, or nothing on any when it arrives damaged."""
    has = gather(bool(parts))
    if all(has) or not any(has):
        return list(parts)
    rank, _ = place()
    source = has.index(True)
    part, values = signed.broadcast(_header(parts[0]) if rank == source else _NONE, source)
    assert part is not None
    data = parts[0].data if parts else torch.empty(part.size, dtype=torch.uint8)
    _broadcast(data, source)
    arrived = list(parts)
    if not parts:
        try:
            arrived = [_received(part, values, data, crew, f"the snapshot of rank {source}")]
        except DamagedCheckpointError:
            arrived = []
    return arrived if all(gather(bool(arrived))) else []


def send_own(
    own: Sequence[OpenPart], seen: Sequence[int], find: Callable[[int], Sequence[OpenPart]], crew: CopyThreadPool
) -> list[OpenPart]:
    """Give each rank that lacks its own part of a sharded state that of a rank on whose node there is another copy.

    Args:
        own: of this rank; none where it lacks it.
        seen: the numbers of all parts on this node.
        find: opens and proves a part of this node by its number; empty where it is damaged.
        crew: that digests what arrives.

    Returns:
        This rank's own part: nothing where nobody has a good copy of it. A collective.

    """
    rank, _ = place()
    told = gather((bool(own), tuple(seen) if own else tuple(number for number in seen if number != rank)))
    found = list(own)
    for lacking in (number for number, (has, _) in enumerate(told) if not has):
        source = next((who for who, (_, parts) in enumerate(told) if who != lacking and lacking in parts), None)
        if source is None:
            continue
        parts = find(lacking) if rank == source else ()
        part, values = signed.broadcast(_header(parts[0]) if parts else _NONE, source)
        if part is None:
            continue
        if rank == source:
            _pass(parts[0].data, lacking, sends=True)
        elif rank == lacking:
            data = torch.empty(part.size, dtype=torch.uint8)
            _pass(data, source, sends=False)
            try:
                found = [_received(part, values, data, crew, f"the copy of rank {source}")]
            except DamagedCheckpointError as error:
                _log.warning("skipping a damaged snapshot: %s", error)
    return found


def send_missing(folder: Path, parts: Sequence[OpenPart]) -> list[Held]:
    """Bring every part of a sharded state into the memory of each node that lacks it; returns all parts, on this node.

    `parts` are those that this rank has proven. Returns nothing, on any rank, where one of them is nowhere.

    Raises:
        NoRoomError: on a node that has no room for them.

    """
    rank, _ = place()
    node = node_name(folder)
    told = gather((node, [(part.part.age, part.part.world_size, part.part.rank) for part in parts]))
    age, world_size, _ = next(iter(held for _, held in told if held))[0]
    holders = {number: who for who, (_, held) in reversed(list(enumerate(told))) for _, _, number in held}
    if set(holders) != set(range(world_size)):
        return []
    writer = next(who for who, (name, _) in enumerate(told) if name == node)
    for number in range(world_size):
        lacking = {name for name, _ in told} - {name for name, held in told if any(n == number for _, _, n in held)}
        if lacking:
            part, data = _spread(number, holders[number], parts)
            if part is not None and node in lacking and rank == writer:
                _keep(folder / f"fetched-{number}", part, data)
    gather(None)
    found = {one.part.rank: one for one in everything(folder) if one.part.age == age}
    return [found[number] for number in sorted(found)]


def _header(part: OpenPart) -> tuple[Part | None, bytes]:
    """Return what is signed of a part: its header, and a digest of what is unpickled of it."""
    return part.part, _digest(part.part, part.data)


def _digest(part: Part, data: torch.Tensor) -> bytes:
    values = data[part.values_at : part.values_at + part.values_size]
    return hashlib.sha256(values.numpy().tobytes()).digest()


def _received(part: Part, values: bytes, data: torch.Tensor, crew: CopyThreadPool, where: str) -> OpenPart:
    """Return a part that has arrived; raises `DamagedCheckpointError` where it is not that of its sender."""
    if _digest(part, data) != values:
        raise DamagedCheckpointError(f"a snapshot is damaged ({where}): its data does not match the signature of its sender")
    return proven(part, data, crew, where)


def _spread(number: int, source: int, parts: Sequence[OpenPart]) -> tuple[Part | None, torch.Tensor]:
    """Give part `number` of rank `source` to all; None where what has arrived is not that of its sender."""
    mine = next((part for part in parts if part.part.rank == number), None) if place()[0] == source else None
    part, values = signed.broadcast(_NONE if mine is None else _header(mine), source)
    assert part is not None
    data = torch.empty(part.size, dtype=torch.uint8) if mine is None else mine.data
    _broadcast(data, source)
    return (part if _digest(part, data) == values else None), data


def _keep(area: Path, part: Part, data: torch.Tensor) -> None:
    private_folder(area)
    require_memory(area, part.size, "a part of another node")
    path = area / "0.bin"
    path.with_suffix(".json").unlink(missing_ok=True)
    with path.open("wb") as file:
        file.write(memoryview((ctypes.c_char * data.numel()).from_address(data.data_ptr())))
    path.with_suffix(".new").write_text(dumps(part))
    path.with_suffix(".new").rename(path.with_suffix(".json"))


def _pass(data: torch.Tensor, other: int, *, sends: bool) -> None:
    """Send to one rank, or receive from it."""
    on_gpu = dist.get_backend() == "nccl"
    for begin in range(0, data.numel(), _PIECE):
        piece = data[begin : begin + _PIECE]
        moved = piece.cuda() if on_gpu else piece
        if sends:
            dist.send(moved, other)
            continue
        dist.recv(moved, other)
        if on_gpu:
            piece.copy_(moved)


def _broadcast(data: torch.Tensor, source: int) -> None:
    on_gpu = dist.get_backend() == "nccl"
    for begin in range(0, data.numel(), _PIECE):
        piece = data[begin : begin + _PIECE]
        if on_gpu:
            moved = piece.cuda()
            dist.broadcast(moved, src=source)
            piece.copy_(moved)
        else:
            dist.broadcast(piece, src=source)
