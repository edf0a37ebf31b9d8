"""What somebody asks of all workers of the job: who has not heard of it, and what those who have answer. Pure."""

from __future__ import annotations

import dataclasses

from rallypoint.agent.rendezvous import telling
from rallypoint.agent.rendezvous.peers import State, members
from rallypoint.wire.messages import Continue
from rallypoint.wire.wish import RankAnswer, Wish, WishStatus

__all__ = ["asks", "told", "wished"]


def wished(state: State, wish: Wish | None, now: float) -> State:
    """Return the state that knows of a wish; the very same one where it does, or where the wish is about another attempt."""
    if wish is None or wish.attempt != state.fence.attempt or wish == state.wish:
        return state
    if state.wish is not None and wish.number < state.wish.number:
        return state  # what the record said before: its reader was slower than another
    return telling.event(
        dataclasses.replace(state, wish=wish), "asked", f"worker command for all ranks: {wish.verb.value}", now
    )


def asks(state: State, agent: str) -> Continue | None:
    """Return the answer to an agent that has workers and has not heard of the wish, None where there is nothing to say."""
    wish, peer = state.wish, state.peers.get(agent)
    if wish is None or peer is None or (peer.report.wish is not None and peer.report.wish.number >= wish.number):
        return None
    return Continue(fence=state.fence, wish=wish)


def told(state: State) -> WishStatus | None:
    """Return how far the wish is: an answer for every rank of the world, empty for those of whom nothing was heard."""
    if state.wish is None:
        return None
    heard = {
        answer.rank: answer
        for peer in members(state)
        if peer.report.wish is not None and peer.report.wish.number == state.wish.number
        for answer in peer.report.wish.ranks
    }
    ranks = [m.first_rank + local_rank for m in state.world for local_rank in range(m.local_world_size)]
    answers = tuple(heard.get(rank, RankAnswer(rank=rank)) for rank in sorted(ranks))
    return WishStatus(number=state.wish.number, verb=state.wish.verb, ranks=answers)
