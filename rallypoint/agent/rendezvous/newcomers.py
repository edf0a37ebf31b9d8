"""Decide when a waiting agent joins the running world: after its preparation. Pure; `now` is an argument.

While the world trains, a waiting agent prepares: its zygote imports the modules of the script, its standbys start, and so does
its store process (`AgentReport.ready`). Only then the members get the request to regroup, so they do not wait for imports.

- An agent that is not ready `READY_WITHIN` seconds after it started to wait joins unprepared, and an event names it.
- Several agents that prepare at the same time join together: when the first is ready, the others have `last_call` seconds.
- A world that forms while no world trains also takes unprepared agents if it is too small or would wait without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rallypoint.agent.rendezvous import journal
from rallypoint.agent.rendezvous.lookup import places
from rallypoint.agent.rendezvous.peers import Peer, State, members, waiting, with_peer
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.status import JobState

__all__ = ["READY_WITHIN", "admitted", "due", "heard", "joining", "noted"]

#: Seconds that an agent may prepare while others train. Imports of a large script on a slow disk take a minute or two.
READY_WITHIN = 180.0


def heard(state: State, before: AgentReport | None, report: AgentReport, now: float) -> State:
    """Return the state with an event for each waiting agent that starts to prepare."""
    prepares = report.state is AgentState.WAITING and not report.ready
    again = before is not None and before.state is AgentState.WAITING
    if not prepares or again or state.state is not JobState.RUNNING or report.agent in places(state.world):
        return state
    peer = state.peers[report.agent]
    return journal.event(
        state, "prepares", f"node {peer.node} on {report.host} prepares to join; the other nodes continue training", now
    )


def noted(state: State, now: float) -> State:
    """Return the state in which agents that have prepared for too long count as ready; the same object if there are none."""
    if state.state is not JobState.RUNNING:
        return state
    for peer in _outside(state):
        if peer.ready_at is None and now >= _limit(peer):
            state = with_peer(state, dataclasses.replace(peer, ready_at=now))
            text = f"node {peer.node} on {peer.report.host} is not prepared after {READY_WITHIN:g} s; it joins anyway"
            state = journal.event(state, "unready", text, now)
    return state


def joining(state: State, now: float) -> tuple[Peer, ...]:
    """Return the agents for which the running world regroups now; none if it would not grow."""
    outside = _outside(state)
    ready = _growing(state, outside)
    if not ready:
        return ()
    prepare = [peer for peer in outside if peer.ready_at is None]
    if not prepare or _is_full(state, ready) or now >= _called_at(state, ready):
        return ready
    return ()


def due(state: State) -> float | None:
    """Return the next time at which `noted` or `joining` changes without a report; None without a waiting agent."""
    if state.verdict is not None or state.state is not JobState.RUNNING:
        return None
    outside = _outside(state)
    times = [_limit(peer) for peer in outside if peer.ready_at is None]
    ready = _growing(state, outside)
    if times and ready and not _is_full(state, ready):
        times.append(_called_at(state, ready))
    return min(times, default=None)


def admitted(state: State, here: Sequence[Peer]) -> tuple[Peer, ...]:
    """Return the waiting agents that the forming round may include."""
    known = places(state.world)
    prepared = tuple(p for p in here if p.report.agent in known or p.ready_at is not None)
    enough = state.settings.usable(len(prepared)) >= state.settings.min_nodes
    goes_on = any(p.report.agent in known for p in prepared)
    return prepared if enough and goes_on and state.replacements_until is None else tuple(here)


def _outside(state: State) -> list[Peer]:
    known = places(state.world)
    return [peer for peer in waiting(state) if peer.report.agent not in known]


def _growing(state: State, outside: Sequence[Peer]) -> tuple[Peer, ...]:
    """Return the ready agents if they would enlarge the world and no member has ended."""
    ready = tuple(peer for peer in outside if peer.ready_at is not None)
    if not ready or any(peer.report.state is AgentState.DONE for peer in members(state)):
        return ()
    return ready if state.settings.usable(len(state.world) + len(ready)) > len(state.world) else ()


def _is_full(state: State, ready: Sequence[Peer]) -> bool:
    settings = state.settings
    return settings.usable(len(state.world) + len(ready)) == settings.usable(settings.max_nodes)


def _called_at(state: State, ready: Sequence[Peer]) -> float:
    return min(peer.ready_at for peer in ready if peer.ready_at is not None) + state.settings.last_call


def _limit(peer: Peer) -> float:
    return (peer.heard_at if peer.waits_since is None else peer.waits_since) + READY_WITHIN
