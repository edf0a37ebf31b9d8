"""The state of a world that has just formed: the last commit that all can have, and how those get it that do not."""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import Store

from rallypoint.training.commits import Commits
from rallypoint.training.errors import StateLostError

__all__ = ["ROUND", "Agreement", "choose", "heal"]

#: The commits of round r are numbered from r * ROUND on: those of a later round are the greater, whatever their count.
ROUND = 1 << 32

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

    It is the last that all have who took part in the last round that anybody was in. What the others still hold is of an
    earlier one, however high its count: the dead worker of a node that was away left it there. Where those of the last round
    have none in common, it is the lowest of their newest.
    """
    newest = max((number // ROUND for numbers in held for number in numbers), default=None)
    if newest is None:
        return None
    current = [frozenset(number for number in numbers if number // ROUND == newest) for numbers in held]
    holders = [numbers for numbers in current if numbers]
    common = frozenset.intersection(*holders)
    number = max(common) if common else min(max(numbers) for numbers in holders)
    having = [rank for rank, numbers in enumerate(held) if number in numbers]
    needy = tuple(rank for rank, numbers in enumerate(held) if number not in numbers)
    return Agreement(number=number, source=having[0], needy=needy)


def heal(
    commits: Commits,
    state: MutableMapping[str, Any],
    *,
    sharded: bool,
    device: torch.device,
    round_: int,
    store: Store,
    turn: int = 0,
    loaded: int | None = None,
) -> int | None:
    """Bring `state` to the last commit that all ranks can have; return its number in this round, None where there is none.

    A collective; `store` is that of this world, which has healed `turn` times before. `sharded`: each rank has a part of the
    state that no other has, so that nobody can be sent it. `loaded`: the step that the script has loaded; a commit of an
    earlier one is of a world that is long over, and counts as none.

    Raises:
        StateLostError: on every rank, when a part of the state is lost.

    """
    rank, size = dist.get_rank(), dist.get_world_size()
    ours = [h for h in commits.held() if not sharded or (h.rank, h.world_size) == (rank, size)]
    told, steps = _told({held.number: held.step for held in ours}, -1 if loaded is None else loaded, store, turn)
    agreed = choose(told)
    if agreed is None or -1 < steps[agreed.number] < steps[_NONE]:
        return None
    if agreed.needy and sharded:
        lost = ", ".join(map(str, agreed.needy))
        raise StateLostError(f"commit {agreed.number}: the state of rank {lost} is lost, because no live rank has a copy")
    if agreed.needy:
        _send(commits, agreed, rank, size, device, steps[agreed.number])
    commits.forget_above(agreed.number)
    commits.restore(agreed.number, state, rank)
    commits.renumber(agreed.number, round_ * ROUND)
    return round_ * ROUND


def _told(held: dict[int, int], loaded: int, store: Store, turn: int) -> tuple[list[frozenset[int]], dict[int, int]]:
    """Tell the others which commits we hold; return what each of them holds, and the step of each.

    The latest step that any of us has loaded stands under `_NONE`. It goes over the store, not over the group: a collective
    wakes each rank once for every other, which costs eight ranks on two cores 5 ms and more.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    store.set(f"held/{turn}/{rank}", json.dumps([loaded, *held.items()]))
    rows = [json.loads(told) for told in store.multi_get([f"held/{turn}/{other}" for other in range(size)])]
    steps = {number: step for row in rows for number, step in row[1:]}
    steps[_NONE] = max(row[0] for row in rows)
    return [frozenset(number for number, _ in row[1:]) for row in rows], steps


def _send(commits: Commits, agreed: Agreement, rank: int, size: int, device: torch.device, step: int) -> None:
    """Let the source spread its commit; whoever has it takes part, and forgets what it hears."""
    flat = commits.flat(agreed.number) if rank == agreed.source else None
    sizes = torch.tensor([0, 0] if flat is None else [len(flat[0]), len(flat[1])], dtype=torch.int64, device=device)
    dist.broadcast(sizes, src=agreed.source)
    data_bytes, text_bytes = sizes.tolist()
    data, text = flat or commits.receive(data_bytes, text_bytes, spare=agreed.number)
    for piece in (*data.split(_PIECE), *text.split(_PIECE)):
        _broadcast(piece, agreed.source, device)
    if rank in agreed.needy:
        commits.received(text, agreed.number, agreed.source, size, step)
    elif flat is None:
        commits.dropped()


def _broadcast(piece: torch.Tensor, source: int, device: torch.device) -> None:
    if device.type == "cpu":
        dist.broadcast(piece, src=source)
        return
    there = piece.to(device)
    dist.broadcast(there, src=source)
    piece.copy_(there)
