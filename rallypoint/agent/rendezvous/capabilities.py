"""Stores the states of the registered capabilities for the rendezvous, calls their methods and applies their effects. Pure.

This module depends on no particular capability; `rallypoint.capabilities.base` defines the interface.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rallypoint.agent.rendezvous import faults, journal, last_checkpoint
from rallypoint.agent.rendezvous.lookup import places
from rallypoint.agent.rendezvous.peers import Capabilities, State
from rallypoint.capabilities.base import (
    CoordinatorCapability,
    Effect,
    EndSaving,
    HealIncident,
    RecordEvent,
    RecordIncident,
    ReplaceNode,
    ReportedPeer,
    RestartForming,
    RestartWorkers,
    RoundView,
)
from rallypoint.wire.incident import Answer, FaultKind, Incident, merge_incidents
from rallypoint.wire.messages import AgentReport, Continue
from rallypoint.wire.sections import NO_SECTIONS, Section, Sections
from rallypoint.wire.status import JobStatus, Member

__all__ = [
    "Registered",
    "after_losses",
    "after_tick",
    "assignment_sections",
    "before_round",
    "holds_round",
    "next_deadline",
    "on_report",
    "on_request",
    "on_tick",
    "reply_for",
    "reply_for_waiting",
    "reply_key",
    "report_period",
    "restored",
    "status_sections",
    "view",
]

Registered = Sequence[CoordinatorCapability[Any]]

_Step = Callable[[CoordinatorCapability[Any], Any, RoundView], tuple[Any, Sequence[Effect]]]


def restored(registered: Registered, previous: JobStatus | None, *, uid: str, attempt: int, now: float) -> Capabilities:
    """Return the capabilities of a starting coordinator; `previous` is the last published status, or None."""
    known = previous if previous is not None and previous.uid == uid else None
    continues = known is not None and known.fence.attempt == attempt
    return Capabilities(
        registered=tuple(registered),
        states=tuple(one.restore(known, continues=continues, now=now) for one in registered),
        unknown=known.sections.unknown if known is not None and continues else {},
    )


def on_report(state: State, report: AgentReport, before: AgentReport | None, now: float) -> State:
    """Return the state after a report; `before` is the one that the same agent sent last."""
    known, seen = state.capabilities.states, view(state)
    for place, one in enumerate(state.capabilities.registered):
        own = one.on_report(known[place], report, before, seen, now)
        if own is not known[place]:
            state = _with(state, place, own)
    return state


def on_request(state: State, name: str, request: object, now: float) -> State:
    """Return the state after a request of the service of a capability."""
    for place, one in enumerate(state.capabilities.registered):
        if one.name == name:
            own, effects = one.on_request(state.capabilities.states[place], request, view(state), now)
            state = _taken(state, place, own, effects, now)
    return state


def on_tick(state: State, now: float) -> State:
    """Return the state after `on_tick` of each capability, with the effects applied."""
    return _each(state, lambda one, own, seen: one.on_tick(own, seen, now), now)


def after_losses(state: State, now: float) -> State:
    """Return the state after `after_losses` of each capability, up to the first verdict."""
    return _each(state, lambda one, own, seen: one.after_losses(own, seen, now), now, verdict=False)


def after_tick(state: State, now: float) -> State:
    """Return the state after `after_tick` of each capability."""
    known, seen = state.capabilities.states, view(state)
    for place, one in enumerate(state.capabilities.registered):
        own = one.after_tick(known[place], seen, now)
        if own is not known[place]:
            state = _with(state, place, own)
    return state


def report_period(state: State) -> float:
    """Return the shortest period between reports that a capability needs; 0 as usual."""
    seen = view(state)
    found = (one.report_period(own, seen) for one, own in _pairs(state))
    return min(filter(None, found), default=0.0)


def holds_round(state: State) -> bool:
    """Return whether the next round must wait for a capability."""
    return any(one.holds_round(own) for one, own in _pairs(state))


def before_round(state: State, ready: Sequence[ReportedPeer], now: float) -> State:
    """Return the state after `before_round` of each capability, up to the first one for which the round must wait."""
    for place, one in enumerate(state.capabilities.registered):
        if state.verdict is None and not holds_round(state):
            own, effects = one.before_round(state.capabilities.states[place], view(state), ready, now)
            state = _taken(state, place, own, effects, now)
    return state


def reply_for(state: State, report: AgentReport) -> Continue | None:
    """Return the capabilities' requests to an agent whose workers run, or None."""
    return _continue(state, [one.reply_for(own, report) for one, own in _pairs(state)])


def reply_for_waiting(state: State, report: AgentReport) -> Continue | None:
    """Return the requests of capabilities for an agent that waits for a round, None if there are none."""
    return _continue(state, [one.reply_for_waiting(own, report) for one, own in _pairs(state)])


def assignment_sections(state: State, member: Member) -> Sections:
    """Return the capabilities' sections of a member's assignment to a round."""
    seen = view(state)
    return _sections([one.assignment_for(own, member, seen) for one, own in _pairs(state)])


def reply_key(state: State) -> tuple[object, ...]:
    """Return a value that changes whenever `reply_for` may return something else for the same report."""
    return tuple(one.reply_key(own) for one, own in _pairs(state))


def next_deadline(state: State) -> float | None:
    """Return the earliest time at which a capability changes its state without a report, or None."""
    found = (one.next_deadline(own) for one, own in _pairs(state))
    return min((at for at in found if at is not None), default=None)


def status_sections(state: State) -> Sections:
    """Return the capabilities' sections of the published status."""
    known, seen = state.capabilities, view(state)
    found = (one.to_status(own, seen) for one, own in _pairs(state))
    return Sections(*(section for section in found if section is not None), unknown=known.unknown)


def view(state: State) -> RoundView:
    """Return what capabilities may read."""
    # What the constructor does, without setting each field by itself: each report comes by here several times.
    seen = object.__new__(RoundView)
    seen.__dict__.update(
        fence=state.fence,
        state=state.state,
        world=state.world,
        places=places(state.world),
        peers=state.peers,
        incidents=state.incidents,
        away=state.away,
        verdict=state.verdict,
        ending=state.held_verdict is not None,
        min_nodes=state.settings.min_nodes,
        max_nodes=state.settings.max_nodes,
        since=state.start.at,
    )
    return seen


def _pairs(state: State) -> Iterator[tuple[CoordinatorCapability[Any], Any]]:
    return zip(state.capabilities.registered, state.capabilities.states, strict=True)


def _continue(state: State, found: Sequence[Section | None]) -> Continue | None:
    sections = _sections(found)
    return Continue(fence=state.fence, sections=sections) if sections else None


def _sections(found: Sequence[Section | None]) -> Sections:
    return Sections(*(section for section in found if section is not None)) if any(found) else NO_SECTIONS


def _each(state: State, step: _Step, now: float, *, verdict: bool = True) -> State:
    """Return the state after a step of each capability; without `verdict` up to the first one that gives a verdict."""
    seen, of = view(state), state  # most steps change nothing, so that one view serves them all
    for place, one in enumerate(state.capabilities.registered):
        if not verdict and state.verdict is not None:
            break
        if of is not state:
            seen, of = view(state), state
        own, effects = step(one, state.capabilities.states[place], seen)
        if effects or own is not state.capabilities.states[place]:
            state = _taken(state, place, own, effects, now)
    return state


def _taken(state: State, place: int, own: Any, effects: Iterable[Effect], now: float) -> State:
    known = state.capabilities.states[place]
    return _performed(state if own is known else _with(state, place, own), effects, now)


def _with(state: State, place: int, own: Any) -> State:
    known = state.capabilities
    states = (*known.states[:place], own, *known.states[place + 1 :])
    return state.with_capabilities(dataclasses.replace(known, states=states))


def _performed(state: State, effects: Iterable[Effect], now: float) -> State:
    for effect in effects:
        if isinstance(effect, RecordEvent):
            record = journal.once if effect.once else journal.event
            state = record(state, effect.kind, effect.detail, now)
        elif isinstance(effect, ReplaceNode):
            state = _replaced(state, effect, now)
        elif isinstance(effect, RecordIncident):
            state = journal.incident(state, _with_step(state, effect.incident))
        elif isinstance(effect, HealIncident):
            state = _healed(state, effect, now)
        elif isinstance(effect, RestartWorkers):
            state = faults.restart(state, _with_step(state, effect.incident), now)
        elif isinstance(effect, RestartForming):
            state = state.with_forming(since=now, enough_since=None)
        elif isinstance(effect, EndSaving):
            state = last_checkpoint.end(state, effect, now)
        elif state.verdict is None:
            result = state.result if effect.result is None else effect.result
            state = journal.verdict(dataclasses.replace(state, result=result), effect.verdict, now)
    return state


def _with_step(state: State, told: Incident) -> Incident:
    return told if told.last_step is not None else dataclasses.replace(told, last_step=journal.last_step(state))


def _healed(state: State, effect: HealIncident, now: float) -> State:
    open_ = (i for i in state.incidents if i.id == effect.incident and i.healed_at is None)
    healed = tuple(dataclasses.replace(i, healed_at=now) for i in open_)
    return dataclasses.replace(state, incidents=merge_incidents(state.incidents, healed)) if healed else state


def _replaced(state: State, effect: ReplaceNode, now: float) -> State:
    """Let a node leave, so that another machine takes its place."""
    peer = state.peers.get(effect.agent)
    if peer is None:
        return state
    told = journal.node_incident(state, peer, "", now)
    culprit = None if told.culprit is None else dataclasses.replace(told.culprit, error=effect.error)
    told = dataclasses.replace(
        told,
        reason=effect.reason,
        culprit=culprit,
        kind=FaultKind.HARDWARE,
        answer=Answer.RETRY_ELSEWHERE,
        rule=effect.rule,
    )
    state = dataclasses.replace(journal.incident(state, told), away=state.away | {effect.agent})
    return journal.event(state, "sent-away", told.reason, now)
