"""Who is missing, and since when: slots that the job wants and in which nobody is. Pure.

The published list is derived from the agents as they are now. Only the time of a loss cannot be derived from them: it is stored
(`MissingNodes.gone`), and a later coordinator restores it from the status.

A node whose report is overdue is told at once, long before its lease is over: it may come back, and then it was never missing.
Somebody has to look when that is (`due`), since whoever is silent says nothing; who was found silent then is noted, so that
nobody looks again for the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rallypoint.agent.rendezvous.peers import Peer, State, stretch
from rallypoint.agent.rendezvous.settings import Settings
from rallypoint.wire.messages import AgentState
from rallypoint.wire.missing import MISSING_LIMIT, Absence, Missing
from rallypoint.wire.status import JobStatus

__all__ = ["due", "inherited", "lost", "noted", "told", "wanted"]

#: A report is overdue after so many times as long as its agent waits between two.
_OVERDUE = 1.5


def lost(state: State, peer: Peer) -> State:
    """Return the state that remembers when an agent was lost, or left; its slot may be taken by another already."""
    if _known(state, peer) is not None:
        return state
    if peer.report.state is AgentState.LEAVING:
        why, since = Absence.LEFT, peer.heard_at
    else:
        why, since = Absence.LOST, peer.heard_at if peer.gone_at is None else peer.gone_at
    return _with(state, _of(peer, why, since))


def wanted(state: State, before: Settings, now: float) -> State:
    """Return the state that remembers since when slots are wanted that were not wanted `before`."""
    new = range(before.max_nodes, state.settings.max_nodes)
    return _with(state, *(Missing(node=node, why=Absence.EXPECTED, since=now) for node in new))


def due(state: State) -> float | None:
    """Return when the next report will be overdue, None where none is awaited: whoever is silent already is not."""
    if state.verdict is not None:
        return None
    pace, more = state.settings.pace, stretch(state)
    heard = (p for name, p in state.peers.items() if name not in state.missing.silent)
    awaited = (p for p in heard if p.report.state is not AgentState.LEAVING)
    return min((_overdue_at(p, pace, more) for p in awaited), default=None)


def noted(state: State, now: float) -> State:
    """Return the state that knows who is silent at `now`; the very same where nobody else is than before."""
    if state.verdict is not None:
        return state
    pace, more = state.settings.pace, stretch(state)
    silent = frozenset(p.report.agent for p in state.peers.values() if _is_silent(p, pace, more, now))
    if silent == state.missing.silent:
        return state
    return dataclasses.replace(state, missing=dataclasses.replace(state.missing, silent=silent))


def inherited(state: State, previous: JobStatus) -> State:
    """Return the state that remembers what the last coordinator told."""
    return _with(state, *(one for one in previous.missing if one.why is not Absence.SILENT))


def _with(state: State, *more: Missing) -> State:
    if not more:
        return state
    gone = {**state.missing.gone, **{one.node: one for one in more}}
    return dataclasses.replace(state, missing=dataclasses.replace(state.missing, gone=gone))


def told(status: JobStatus, state: State, now: float) -> JobStatus:
    """Return the status with who is missing at `now`; nobody is once there is a verdict."""
    if state.verdict is not None:
        return status
    here = {peer.node: peer for peer in state.peers.values()}
    pace, more = state.settings.pace, stretch(state)
    silent = [p for p in here.values() if _is_silent(p, pace, more, now)]
    overdue = [_known(state, p) or _of(p, Absence.SILENT, p.heard_at) for p in silent]
    found = sorted((*overdue, *_empty(state, here)), key=_rank(state))
    if not found:
        return status
    return dataclasses.replace(status, missing=tuple(found[:MISSING_LIMIT]), missing_count=len(found))


def _empty(state: State, here: dict[int, Peer]) -> list[Missing]:
    """Return the slots in which nobody is, as many as there are nodes too few."""
    leaving = [p for p in here.values() if p.report.state is AgentState.LEAVING]
    few = state.settings.max_nodes - len(here) + len(leaving)
    if few <= 0:
        return []
    found, gone = [_of(p, Absence.LEFT, p.heard_at) for p in leaving], state.missing.gone
    slots = (node for node in range(state.settings.max_nodes) if node not in here)
    found += (gone.get(node) or Missing(node=node, why=Absence.EXPECTED, since=state.start.at) for node in slots)
    return sorted(found, key=_rank(state))[:few]


def _rank(state: State) -> Callable[[Missing], tuple[bool, bool, int]]:
    world = {member.node for member in state.world}
    return lambda one: (one.node not in world, one.why is Absence.EXPECTED, one.node)


def _is_silent(peer: Peer, pace: float, more: float, now: float) -> bool:
    return peer.report.state is not AgentState.LEAVING and now >= _overdue_at(peer, pace, more)


def _overdue_at(peer: Peer, pace: float, more: float) -> float:
    return peer.heard_at + _OVERDUE * max(pace, peer.report.hold) + more


def _known(state: State, peer: Peer) -> Missing | None:
    """Return what the last coordinator told of one of its world whom this one has not heard yet, None where it was there."""
    told = state.missing.gone.get(peer.node) if peer.patience else None
    return told if told is not None and told.incarnation == peer.incarnation else None


def _of(peer: Peer, why: Absence, since: float) -> Missing:
    return Missing(node=peer.node, incarnation=peer.incarnation, host=peer.report.host, why=why, since=since)
