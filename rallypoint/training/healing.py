"""The state of a world that has just formed: the last commit that all can have, and how those get it that do not."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from rallypoint.training.commits import SLOTS, Commits
from rallypoint.training.errors import StateLostError

__all__ = ["Agreement", "choose", "heal"]

#: Bytes of a state that are sent at a time.
_PIECE = 256 << 20

_NONE = -1


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The commit that all go on from, the rank that sends it, and the ranks that need it."""

    number: int
    source: int
    needy: tuple[int, ...]


def choose(held: Sequence[frozenset[int]]) -> Agreement | None:
    """Return what ranks that hold these commits go on from; None where nobody holds any. Pure.

    It is the last that all holders have. Where they have none in common, one of them cannot have taken part in the last rounds:
    then it is the lowest of their newest.
    """
    holders = [numbers for numbers in held if numbers]
    if not holders:
        return None
    common = frozenset.intersection(*holders)
    number = max(common) if common else min(max(numbers) for numbers in holders)
    having = [rank for rank, numbers in enumerate(held) if number in numbers]
    needy = tuple(rank for rank, numbers in enumerate(held) if number not in numbers)
    return Agreement(number=number, source=having[0], needy=needy)


def heal(commits: Commits, state: MutableMapping[str, Any], *, sharded: bool, device: torch.device) -> int | None:
    """Bring `state` to the last commit that all ranks can have, and return its number; None where there is none. A collective.

    `sharded`: each rank has a part of the state that no other has, so that nobody can be sent it.

    Raises:
        StateLostError: on every rank, when a part of the state is lost.

    """
    rank, size = dist.get_rank(), dist.get_world_size()
    ours = [h for h in commits.held() if not sharded or (h.rank, h.world_size) == (rank, size)]
    agreed = choose(_told([held.number for held in ours], size, device))
    if agreed is None:
        return None
    if agreed.needy and sharded:
        lost = ", ".join(map(str, agreed.needy))
        raise StateLostError(f"commit {agreed.number}: the part of rank {lost} is lost, and no other rank has it")
    if agreed.needy:
        _send(commits, agreed, rank, size, device)
    commits.forget_above(agreed.number)
    commits.restore(agreed.number, state, rank)
    return agreed.number


def _told(numbers: list[int], size: int, device: torch.device) -> list[frozenset[int]]:
    """Tell the others which commits we hold, and return what each of them holds."""
    mine = torch.tensor([*numbers, *[_NONE] * SLOTS][:SLOTS], dtype=torch.int64, device=device)
    told = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(told, mine)
    return [frozenset(number for number in row.tolist() if number != _NONE) for row in told]


def _send(commits: Commits, agreed: Agreement, rank: int, size: int, device: torch.device) -> None:
    """Let the source spread its commit; whoever has it takes part, and forgets what it hears."""
    flat = commits.flat(agreed.number) if rank == agreed.source else None
    sizes = torch.tensor([0, 0] if flat is None else [len(flat[0]), len(flat[1])], dtype=torch.int64, device=device)
    dist.broadcast(sizes, src=agreed.source)
    data_bytes, text_bytes = sizes.tolist()
    data, text = flat or commits.receive(data_bytes, text_bytes, spare=agreed.number)
    for piece in (*data.split(_PIECE), *text.split(_PIECE)):
        _broadcast(piece, agreed.source, device)
    if rank in agreed.needy:
        commits.received(text, agreed.number, agreed.source, size)
    elif flat is None:
        commits.dropped()


def _broadcast(piece: torch.Tensor, source: int, device: torch.device) -> None:
    if device.type == "cpu":
        dist.broadcast(piece, src=source)
        return
    there = piece.to(device)
    dist.broadcast(there, src=source)
    piece.copy_(there)
