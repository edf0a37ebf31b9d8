"""When a round is closed, and with whom; or given up. Pure; `now` is an argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rallypoint.agent.rendezvous import (
    capabilities,
    faults,
    journal,
    last_world,
    newcomers,
    ports,
    progress,
    rungs,
)
from rallypoint.agent.rendezvous.peers import ClosedRound, Forming, Peer, State, outstanding, waiting, world_of
from rallypoint.wire.status import JobState, Outcome, Verdict

__all__ = ["form"]


def form(state: State, now: float) -> State:
    """Close a round if it is time, or give up if it is too late."""
    ready = newcomers.admitted(state, waiting(state))
    usable = state.settings.usable(len(ready))
    if outstanding(state) or capabilities.holds_round(state):
        return state
    if usable >= state.settings.min_nodes and state.forming.enough_since is None:
        state = state.with_forming(enough_since=now)
    if usable < state.settings.min_nodes:
        state = state.with_forming(enough_since=None)
        return _give_up(state, len(ready), now) if now >= state.forming.since + state.settings.join_timeout else state
    if last_world.blocked(state, ready, now):
        return journal.once(
            state, "fenced", "no new round yet: the lost nodes of the previous round may still be training", now
        )
    full = usable == state.settings.usable(state.settings.max_nodes)
    if not full and state.replacements_until is not None:
        return journal.once(state, "awaiting", "no smaller round yet: waiting for the lost nodes to be replaced", now)
    enough_since = state.forming.enough_since
    called = enough_since is not None and now >= enough_since + state.settings.last_call
    if not (full or called or state.world):
        return state
    if state.echoes is not None:
        state = faults.charge_echoes(state, state.echoes, now)
        # The charge may end the attempt, begin a last checkpoint, or send away an agent that waits here.
        return state if state.verdict is not None or state.held_verdict is not None else form(state, now)
    state = capabilities.before_round(state, ready, now)
    return state if capabilities.holds_round(state) else _close(state, ready, usable, now)


def _give_up(state: State, joined: int, now: float) -> State:
    bounds = f"{state.settings.min_nodes} to {state.settings.max_nodes}"
    message = (
        f"{joined} of {bounds} nodes joined within {state.settings.join_timeout:g} s (rendezvous.join_timeout); "
        "check the logs of the missing nodes"
    )
    return journal.verdict(state, Verdict(outcome=Outcome.FAILED, reason="RendezvousTimeout", message=message), now)


def _close(state: State, ready: Sequence[Peer], usable: int, now: float) -> State:
    """Close the next round with `usable` of the agents that wait; members of the last world come first."""
    known = {m.agent for m in state.world}
    chosen = sorted(ready, key=lambda p: (p.report.agent not in known, p.node))[:usable]
    chosen.sort(key=lambda p: p.node)
    fence = state.fence.with_round(state.fence.round + 1)
    world = world_of(chosen)
    kept = rungs.kept_in(state, chosen, world)
    if not kept:
        state = journal.climbed(state)
    state = dataclasses.replace(
        state,
        fence=fence,
        state=JobState.RUNNING,
        world=world,
        closed=ClosedRound(store=chosen[0].report.store, training_port=ports.common(chosen), kept=kept),
        forming=Forming(),
        absent=(),
        loss=None,
    )
    size = sum(m.local_world_size for m in state.world)
    state = progress.began(ports.noted(state, now), now)
    on = f", {kept} worker processes kept" if kept else ""
    nodes = f"{len(chosen)} node{'' if len(chosen) == 1 else 's'}"
    return journal.event(state, "round", f"round {fence.round}: {nodes}, {size} rank{'' if size == 1 else 's'}{on}", now)
