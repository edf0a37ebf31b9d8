"""The rendezvous: who is in the world, when a round is closed, and when it is over. Pure; `now` is an argument.

Theory of operation
===================

Agents say everything that is true of them (`AgentReport`), again and again; the coordinator keeps the last report of each
(`Peer`) and answers from the state alone (`answer`). So there is no conversation to lose track of: a report or an answer that
was lost is simply repeated, and a coordinator that was just started knows all it needs after one report of each agent.

The state is one of four. FORMING: agents wait for a round. RUNNING: a round is closed and its world trains. SUCCEEDED and
FAILED: there is a verdict, and every agent that asks is told to stop.

A round is closed when every living member of the last world is back (it may still be stopping its workers), and

- the largest world that is allowed has gathered, or
- at least `min_nodes` have, and either this is not the first round (whoever is alive is back: nobody else is worth waiting
  for; who returns later makes the world grow) or the last call is over.

Before that the nodes are checked, where the plan asks for it (`checks.py`), and its operators are asked (`prechecks.py`).

A world that takes over no member of the last one waits until that is known to be over (`last_world.py`): an agent that is out
of reach may still train.

A round is broken when a worker ends badly, when a member is lost (its lease is over, or all its connections ended and it
was not back within `RECONNECT_WITHIN`), when one leaves, or when somebody waits who would make the world larger. Everyone is
then told to regroup. Who joins a running world has prepared before that (`newcomers.py`).

An agent closes no connection before it was heard over another one, so the end of its last is the kernel's word that its process
is gone, or a cut in the network. A living agent hears the cut as soon as we do and is back within a few milliseconds; if it
takes longer, that costs a regroup: it is taken in again like any that was lost.

An end of a worker has a verdict (`rulings.py`). Most are answered by a restart, which the budget of process faults pays for.
Some ask for another node: that worker's agent is told to leave (`away`), and its end is the fault of a node, which the
supervisor replaces. Some end the job, whatever is left of any budget.

Optional capabilities (`capabilities.py`) are called with each report, before all other conclusions of a tick, and for each
answer and status; the rendezvous knows none of them by name.

A world that is silent for `hang_downtime` hangs (`health/hang.py`); what is done about it is `health/rounds.py`'s to say.

A rank whose peer vanished fails too, and may be heard first. While a member is out of touch, or all that is told is of lost
connections, the failure is kept as an echo: a lost node or another rank's own failure takes its place, and only if neither
shows within `ECHO_GRACE`, or before the next round is closed, the echo itself is charged. Nobody waits for that: the round is
broken at once.

Deadlines are counted on the coordinator's own clock; clocks of two machines are never compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.agent.rendezvous import (
    attempted,
    awaiting,
    capabilities,
    checks,
    closing,
    dumping,
    faults,
    last_world,
    missing,
    newcomers,
    picture,
    prechecks,
    progress,
    telling,
    tolerance,
    wishes,
)
from rallypoint.agent.rendezvous.answering import answer, dismissed, told, told_all
from rallypoint.agent.rendezvous.faults import ECHO_GRACE
from rallypoint.agent.rendezvous.health import known as hang_known
from rallypoint.agent.rendezvous.health import rounds as hang_rounds
from rallypoint.agent.rendezvous.peers import (
    Peer,
    State,
    accept,
    opened,
    outstanding,
    sealed,
    sent_away,
    stretch,
    with_peer,
)
from rallypoint.agent.rendezvous.refusing import refusal
from rallypoint.agent.rendezvous.settings import Settings
from rallypoint.supervision.budget import Course
from rallypoint.wire.messages import AgentReport
from rallypoint.wire.roster import LostNode
from rallypoint.wire.size import Size
from rallypoint.wire.status import JobState, JobStatus

__all__ = [
    "ECHO_GRACE",
    "RECONNECT_WITHIN",
    "Settings",
    "State",
    "answer",
    "deadline",
    "delayed",
    "disconnected",
    "dismissed",
    "given_up",
    "hear",
    "new",
    "opened",
    "receive",
    "refusal",
    "resized",
    "sealed",
    "status",
    "stretch",
    "tick",
    "told",
    "told_all",
    "wakes",
]

#: Seconds after which an agent that has no connection left, and did not come back, is lost. This is the reaction time to a
#: killed node; a silent host is noticed by `node_lease` only.
RECONNECT_WITHIN = 0.02


def new(
    settings: Settings,
    *,
    job: str,
    uid: str,
    attempt: int,
    term: int,
    now: float,
    previous: JobStatus | None = None,
    registered: capabilities.Registered = (),
) -> State:
    """Return the state of a coordinator that just started; `registered` are the optional capabilities that it has.

    With the `previous` status of the same attempt it takes over: the members of the last world have `TAKEOVER` seconds to speak
    up, or their lease where that is longer, and until then the round goes on as if nothing had happened.
    """
    state = prechecks.begun(State.fresh(settings, job=job, uid=uid, attempt=attempt, term=term, now=now))
    state = state.with_capabilities(capabilities.restored(registered, previous, uid=uid, attempt=attempt))
    state = hang_known.inherited(state, previous)
    if previous is None or previous.uid != uid or previous.fence.attempt != attempt:
        return telling.event(state, "coordinator", f"term {term} started", now)
    settled = all(incident.healed_at is not None for incident in previous.incidents)
    state = dataclasses.replace(
        state,
        fence=dataclasses.replace(state.fence, round=previous.fence.round),
        state=previous.state,
        world=previous.world,
        store=previous.store,
        training_port=previous.training_port,
        lively_at=min(previous.lively_at, now),
        round_step=previous.progress.step if settled else None,
        away=sent_away(previous),
        inherited=frozenset(incident.id for incident in previous.incidents),
        course=Course.inherited(previous.progress),
        incidents=previous.incidents,
        folded=previous.folded,
        lost=previous.lost,
        events=previous.events,
        progress=previous.progress,
        samples=previous.samples,
        verdict=previous.verdict,
        result=previous.result,
        peers={m.agent: Peer.recalled(m, previous, now) for m in previous.world},
    )
    state = prechecks.inherited(state, previous)
    state = missing.inherited(checks.inherited(hang_rounds.inherited(state, previous), previous), previous)
    state = attempted.inherited(dumping.inherited(state, previous, now), previous, now)
    return telling.event(state, "coordinator", f"term {term} took over in round {previous.fence.round}", now)


# --- What is said to us ----------------------------------------------------------------------------------------------------


def receive(state: State, report: AgentReport, now: float) -> State:
    """Take over what an agent says of itself, and conclude; ask `refusal` first."""
    return tick(hear(state, report, now), now)


def hear(state: State, report: AgentReport, now: float) -> State:
    """Take over what an agent says of itself; ask `refusal` first, and `tick` for the conclusions of one or many."""
    before = state.peers.get(report.agent)
    state, replaced = accept(state, report, now)
    if replaced is not None:
        state = faults.lose(state, replaced, "was replaced", now)
    state = last_world.heard(state, report)
    state = progress.heard(state, report, now)
    last = None if before is None else before.report
    state = newcomers.heard(state, last, report, now)
    state = hang_rounds.heard(state, last, report, now)
    state = dumping.heard(capabilities.on_report(state, report, last, now), report)
    return checks.heard(state, report, now)


def delayed(state: State, seconds: float) -> State:
    """Note that we have listened to nobody for so many seconds: whose silence fell into them was not silent."""
    later = {
        name: dataclasses.replace(p, heard_at=p.heard_at + seconds, gone_at=None if p.gone_at is None else p.gone_at + seconds)
        for name, p in state.peers.items()
    }
    return dataclasses.replace(state, peers=later)


def disconnected(state: State, agent: str, now: float) -> State:
    """Note that the last connection of an agent ended."""
    peer = state.peers.get(agent)
    if peer is None or peer.gone_at is not None:
        return state
    return with_peer(state, dataclasses.replace(peer, gone_at=now))


def resized(state: State, size: Size | None, own: Settings, now: float) -> State:
    """Keep to bounds that are wanted, or to the job's `own`; the very same state where they are kept already.

    A world that is smaller than the new minimum trains on: it grows when enough nodes wait. One that is larger than the new
    maximum trains on, too, until the supervisor has taken the nodes away that are too many.
    """
    low, high = (own.min_nodes, own.max_nodes) if size is None else (size.min_nodes, size.max_nodes)
    if (low, high) == (state.settings.min_nodes, state.settings.max_nodes):
        return state
    before, settings = state.settings, dataclasses.replace(state.settings, min_nodes=low, max_nodes=high)
    state = missing.wanted(dataclasses.replace(state, settings=settings), before, now)
    state = telling.event(state, "resized", f"the job now needs {low} to {high} nodes", now)
    return tick(state, now)


def given_up(state: State, lost: Iterable[LostNode]) -> State:
    """Return the state in which members of the last world that a supervisor has found lost have no more than their lease.

    Only those who have not spoken since this coordinator took over: whoever speaks is not lost. The very same state where there
    is nobody like that.
    """
    until, lease = {one.node: one.incarnation for one in lost}, state.settings.node_lease
    peers = {
        name: dataclasses.replace(peer, patience=lease)
        for name, peer in state.peers.items()
        if peer.patience > lease and peer.incarnation <= until.get(peer.node, -1)
    }
    return state.with_peers({**state.peers, **peers}) if peers else state


# --- What follows from it --------------------------------------------------------------------------------------------------


def tick(state: State, now: float, *, listened: float | None = None) -> State:
    """Draw every conclusion that is due at `now`.

    `listened` is until when everything that was said has been heard, None where that is now: nobody is lost for what still
    waits to be read.
    """
    heard_to = now if listened is None else listened
    state = capabilities.on_tick(state, now)
    for peer in tuple(state.peers.values()):
        if heard_to >= _expires(state, peer):
            state = faults.lose(state, peer, _how_lost(peer), now)
    state = missing.noted(telling.refilled(state, now), heard_to)
    if state.verdict is None and state.state is JobState.RUNNING:
        state = faults.judge_round(state, now)
    if state.verdict is None and state.state is JobState.RUNNING:
        state, hang = hang_rounds.concluded(state, now)
        state = state if hang is None else faults.restart(state, hang, now)
    if state.verdict is None and state.echoes:
        state = faults.judge_echoes(state, now)
    if state.verdict is None and state.dumping is None and state.state is JobState.FORMING:
        state = faults.judge_late(state, now)
    if state.verdict is None and state.dumping is None and state.loss is not None:
        state = awaiting.timed(faults.judge_losses(state, now), now)
    state = checks.advanced(state, now)
    if state.verdict is None and state.dumping is None and state.state is JobState.FORMING:
        state = closing.form(state, now)
    state = dumping.advanced(state, now)
    return hang_rounds.tidied(state)


def wakes(state: State) -> float | None:
    """Return when to call `tick` even if nobody says anything: at the deadline, or before it, where somebody falls silent."""
    return min((at for at in (deadline(state), missing.due(state)) if at is not None), default=None)


def deadline(state: State) -> float | None:
    """Return when `tick` has something to conclude even if nobody says anything, or None."""
    times = [_expires(state, peer) for peer in state.peers.values()]
    more = (
        hang_rounds.due(state),
        checks.due(state),
        dumping.due(state),
        newcomers.due(state),
        capabilities.next_deadline(state),
    )
    times += [at for at in more if at is not None]
    if state.dumping is not None:
        return min(times, default=None)
    if state.echoes:
        times.append(state.echo_since + ECHO_GRACE)
    awaited = awaiting.due(state)
    if awaited is not None:
        times.append(awaited)
    forming = state.verdict is None and state.state is JobState.FORMING
    if forming and not (outstanding(state) or checks.running(state) or prechecks.waiting(state)):
        if state.enough_since is None:
            times.append(state.forming_since + state.settings.join_timeout)
        elif state.world:
            over = last_world.over_at(state)
            times.extend(() if over is None else (over,))
        else:
            times.append(state.enough_since + state.settings.last_call)
    return min(times, default=None)


def _expires(state: State, peer: Peer) -> float:
    lease = peer.heard_at + max(state.settings.node_lease, peer.patience) + stretch(state)
    return lease if peer.gone_at is None else min(lease, peer.gone_at + RECONNECT_WITHIN)


def _how_lost(peer: Peer) -> str:
    return "sent no report within its lease" if peer.gone_at is None else "closed its connections and did not reconnect"


# --- What is published -----------------------------------------------------------------------------------------------------


def status(state: State, now: float) -> JobStatus:
    """Return what is true of the job, to be published."""
    told = dataclasses.replace(picture.status(state, now), wish=wishes.told(state), tolerance=tolerance.foreign(state))
    told = dataclasses.replace(told, sections=capabilities.status_sections(state))
    return missing.told(told, state, now)
