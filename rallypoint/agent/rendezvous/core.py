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

A world that takes over no member of the last one waits until that is known to be over (`lastworld.py`): an agent that is out of
reach may still train.

A round is broken when a worker ends badly, when a member is lost (its lease is over, or all its connections ended and it
was not back within `RECONNECT_WITHIN`), when one leaves, or when somebody waits who would make the world larger. Everyone is
then told to regroup.

An agent closes no connection before it was heard over another one, so the end of its last is the kernel's word that its process
is gone, or a cut in the network. A living agent hears the cut as soon as we do and is back within a few milliseconds; if it
takes longer, that costs a regroup: it is taken in again like any that was lost.

An end of a worker has a verdict (`rulings.py`). Most are answered by a restart, which the budget of process faults pays for.
Some ask for another node: that worker's agent is told to leave (`away`), and its end is the fault of a node, which the
supervisor replaces. Some end the job, whatever is left of any budget.

A world that is silent for `hang_downtime` hangs (`hang.py`); what is done about it is `hang_rounds.py`'s to say.

A rank whose peer vanished fails too, and may be heard first. While a member is out of touch, or all that is told is of lost
connections, the failure is kept as an echo: a lost node or another rank's own failure takes its place, and only if neither
shows within `ECHO_GRACE`, or before the next round is closed, the echo itself is charged. Nobody waits for that: the round is
broken at once.

Deadlines are counted on the coordinator's own clock; clocks of two machines are never compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rallypoint.agent.culprit import is_collateral
from rallypoint.agent.rendezvous import (
    checks,
    dumping,
    hang_known,
    hang_rounds,
    missing,
    ports,
    prechecks,
    rulings,
    rungs,
    straggling,
    telling,
    tolerance,
    tuning,
    wishes,
)
from rallypoint.agent.rendezvous import last_world as lastworld
from rallypoint.agent.rendezvous.answering import answer, dismissed, told, told_all
from rallypoint.agent.rendezvous.lookup import places
from rallypoint.agent.rendezvous.peers import (
    Peer,
    Settings,
    State,
    accept,
    living,
    members,
    opened,
    outstanding,
    sealed,
    sent_away,
    stretch,
    waiting,
    with_peer,
    world_of,
)
from rallypoint.agent.rendezvous.refusing import refusal
from rallypoint.supervision.budget import Course
from rallypoint.supervision.verdicts import Judgement
from rallypoint.wire.incident import Answer, Cause, Culprit, Incident, IncidentId, Rung
from rallypoint.wire.messages import (
    AgentReport,
    AgentState,
)
from rallypoint.wire.size import Size
from rallypoint.wire.status import JobState, JobStatus, Outcome, Verdict

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
]

#: Seconds after which an agent that has no connection left, and did not come back, is lost. This is the reaction time to a
#: killed node; a silent host is noticed by `node_lease` only.
RECONNECT_WITHIN = 0.02

#: Seconds for which a failure that looks like an echo of another fault waits for that to show before it is charged itself.
ECHO_GRACE = 1.0


def new(
    settings: Settings, *, job: str, uid: str, attempt: int, term: int, now: float, previous: JobStatus | None = None
) -> State:
    """Return the state of a coordinator that just started.

    With the `previous` status of the same attempt it takes over: the members of the last world have `TAKEOVER` seconds to speak
    up, or their lease where that is longer, and until then the round goes on as if nothing had happened.
    """
    state = prechecks.begun(State.fresh(settings, job=job, uid=uid, attempt=attempt, term=term, now=now))
    state = tuning.inherited(hang_known.inherited(state, previous), previous)
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
    state = dumping.inherited(state, previous, now)
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
        state = _lose(state, replaced, "was replaced", now)
    state = lastworld.heard(state, report)
    state = telling.progress(state, report, now)
    last = None if before is None else before.report
    state = hang_rounds.heard(state, last, report, now)
    state = dumping.heard(tuning.heard(state, last, report, now), report)
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
    state = telling.event(state, "resized", f"{low} to {high} nodes are wanted", now)
    return tick(state, now)


# --- What follows from it --------------------------------------------------------------------------------------------------


def tick(state: State, now: float, *, listened: float | None = None) -> State:
    """Draw every conclusion that is due at `now`.

    `listened` is until when everything that was said has been heard, None where that is now: nobody is lost for what still
    waits to be read.
    """
    heard_to = now if listened is None else listened
    for peer in tuple(state.peers.values()):
        if heard_to >= _expires(state, peer):
            state = _lose(state, peer, _how_lost(peer), now)
    state = telling.refilled(state, now)
    if state.verdict is None and state.state is JobState.RUNNING:
        state = _judge_round(state, now)
    if state.verdict is None and state.state is JobState.RUNNING:
        state, hang = hang_rounds.concluded(state, now)
        state = state if hang is None else _restart(state, hang, now)
    if state.verdict is None and state.echoes:
        state = _judge_echoes(state, now)
    if state.verdict is None and state.dumping is None and state.state is JobState.FORMING:
        state = _judge_late(state, now)
    state = checks.advanced(state, now)
    if state.verdict is None and state.dumping is None and state.state is JobState.FORMING:
        state = _form(state, now)
    state = dumping.advanced(state, now)
    return hang_rounds.tidied(state)


def deadline(state: State) -> float | None:
    """Return when `tick` has something to conclude even if nobody says anything, or None."""
    times = [_expires(state, peer) for peer in state.peers.values()]
    times += [at for at in (hang_rounds.due(state), checks.due(state), dumping.due(state)) if at is not None]
    if state.dumping is not None:
        return min(times, default=None)
    if state.echoes:
        times.append(state.echo_since + ECHO_GRACE)
    forming = state.verdict is None and state.state is JobState.FORMING
    if forming and not (outstanding(state) or checks.running(state) or prechecks.waiting(state)):
        if state.enough_since is None:
            times.append(state.forming_since + state.settings.join_timeout)
        elif state.world:
            over = lastworld.over_at(state)
            times.extend(() if over is None else (over,))
        else:
            times.append(state.enough_since + state.settings.last_call)
    return min(times, default=None)


def _expires(state: State, peer: Peer) -> float:
    lease = peer.heard_at + max(state.settings.node_lease, peer.patience) + stretch(state)
    return lease if peer.gone_at is None else min(lease, peer.gone_at + RECONNECT_WITHIN)


def _how_lost(peer: Peer) -> str:
    return "said nothing for its whole lease" if peer.gone_at is None else "closed its connections and did not come back"


def _lose(state: State, peer: Peer, how: str, now: float) -> State:
    """Forget an agent that is gone; if it was in the world, the round is over and somebody is to blame."""
    state = dataclasses.replace(state, peers={k: p for k, p in state.peers.items() if k != peer.report.agent})
    state = missing.lost(lastworld.lost(state, peer, now), peer)
    member = next((m for m in state.world if m.agent == peer.report.agent), None)
    if member is None or state.verdict is not None or state.dumping is not None or peer.report.state is AgentState.LEAVING:
        return state
    incident = telling.node_incident(state, peer, how, now)
    # Whatever failed in the same round failed because of this.
    state = dataclasses.replace(telling.incident(state, incident), echoes=(), living=rungs.spares(state, incident.rung))
    return _break(state, incident.reason, now)


def _judge_round(state: State, now: float) -> State:
    """Decide whether the running round is over, and how."""
    here = members(state)
    failed = [p for p in here if p.report.round == state.fence.round and _ended_badly(p.report)]
    if failed and _may_be_echoes(state, failed) and not any(rulings.advised(state.settings, p) for p in failed):
        living = rungs.spares(state, rungs.of_failure(state, failed))
        state = dataclasses.replace(state, echoes=tuple(failed), echo_since=now, living=living)
        return _break(state, telling.process_incident(state, failed, now).reason, now)
    if failed:
        return _fail_round(state, failed, now)
    leaving = next((p for p in here if p.report.state is AgentState.LEAVING), None)
    if leaving is not None:
        return _scale(state, leaving, f"node {leaving.node} leaves: {leaving.report.reason or 'it was asked to'}", now)
    if len(here) == len(state.world) and all(p.report.state is AgentState.DONE for p in here):
        message = f"{len(here)} nodes, {sum(m.local_world_size for m in state.world)} ranks ended well"
        left = (p.report.result for p in here)
        state = dataclasses.replace(state, result=next((result for result in left if result is not None), None))
        return telling.verdict(state, Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message=message), now)
    return _grow(telling.healed(state, now), now)


def _ended_badly(report: AgentReport) -> bool:
    # An agent that waits although the round runs has dropped out of it: what it says failed, failed.
    return report.state in (AgentState.FAILED, AgentState.WAITING)


def _may_be_echoes(state: State, failed: list[Peer]) -> bool:
    """Return whether somebody else may be to blame: a member is out of touch, or all that is told is of lost connections."""
    failures = [failure for peer in failed for failure in peer.report.failures]
    if len(state.world) == 1:  # its one agent has seen all there is to see
        return False
    return any(p.gone_at is not None for p in members(state)) or (bool(failures) and all(map(is_collateral, failures)))


def _judge_echoes(state: State, now: float) -> State:
    """Charge the fault behind the echoes once it is told; for want of one, the echoes themselves."""
    told = [p for p in members(state) if p.report.round == state.fence.round and p.report.failures]
    causes = [p for p in told if not all(map(is_collateral, p.report.failures))]
    if causes and all(p.gone_at is None for p in members(state)):
        return _fail_round(dataclasses.replace(state, echoes=()), causes, now)
    return _charge_echoes(state, now) if now >= state.echo_since + ECHO_GRACE else state


def _charge_echoes(state: State, now: float) -> State:
    return _fail_round(dataclasses.replace(state, echoes=()), list(state.echoes), now) if state.echoes else state


def _fail_round(state: State, failed: list[Peer], now: float) -> State:
    """Do what the verdicts on a round's failures ask for: end the job, send nodes away, or restart the workers."""
    state, ruled = _rule(state, failed, now)
    if ruled:
        return state
    told = dataclasses.replace(telling.process_incident(state, failed, now), rung=rungs.of_failure(state, failed))
    found = rulings.on_culprit(state.settings, failed)
    if found is not None:
        peer, culprit, judged = found
        if judged.reason:
            return _end(state, peer, culprit, judged, now)
        told = telling.judged_incident(told, judged)
    return _restart(state, told, now)


def _rule(state: State, failed: list[Peer], now: float) -> tuple[State, bool]:
    """Do what is asked for by name: end the job, or send nodes away; return whether anything was."""
    ruled = [(peer, *found) for peer in failed if (found := rulings.on_peer(state.settings, peer)) is not None]
    final = next((one for one in ruled if one[2].reason), None)
    if final is not None:
        return _end(state, *final, now), True
    for peer, culprit, judged in ruled:
        state = _send_away(state, peer, culprit, judged, now)
    return state, bool(ruled)


def _judge_late(state: State, now: float) -> State:
    """Rule on what is told of the last round after it was broken: the answer of an extension, or a second fault of its own.

    Whatever failed in a round that lost a node failed because of that, and only an extension may still say something about it.
    """
    late = [p for p in living(state) if p.report.round == state.fence.round and p.report.agent not in state.away]
    broken_by_worker = any(
        i.cause is Cause.PROCESS and (i.id.attempt, i.id.round) == (state.fence.attempt, state.fence.round)
        for i in state.incidents
    )
    if not broken_by_worker:
        late = [p for p in late if rulings.advised(state.settings, p) is not None]
    return _rule(state, [p for p in late if p.report.failures], now)[0]


def _end(state: State, peer: Peer, culprit: Culprit | None, judged: Judgement, now: float) -> State:
    """End the attempt as a verdict asks for; whether the job ends with it is the supervisor's to say."""
    told = telling.judged_incident(telling.process_incident(state, [peer], now, culprit), judged)
    rung = Rung.EXIT if judged.answer is Answer.FAIL_NOW else Rung.RESET
    state = telling.incident(state, dataclasses.replace(told, rung=rung))
    message = f"{told.reason}; {judged.rule}"
    given = Verdict(outcome=Outcome.FAILED, reason=judged.reason, message=message, culprit=told.culprit)
    return telling.verdict(state, given, now)


def _send_away(state: State, peer: Peer, culprit: Culprit | None, judged: Judgement, now: float) -> State:
    """Let an agent leave, so that another node takes its place; the others regroup without it."""
    told = telling.away_incident(state, peer, culprit, judged, now)
    living = rungs.spares(state, told.rung)
    state = dataclasses.replace(telling.incident(state, told), away=state.away | {peer.report.agent}, echoes=(), living=living)
    return _break(telling.event(state, "sent-away", told.reason, now), told.reason, now)


def _restart(state: State, told: Incident, now: float) -> State:
    rescheduled = tolerance.master(state)
    if rescheduled is not None:
        return _send_away(state, rescheduled[0], told.culprit, rescheduled[1], now)
    hang = told.cause is Cause.HANG
    budget = state.settings.hangs if hang else state.settings.restarts
    living = not hang and rungs.spares(state, told.rung)
    charged = dataclasses.replace(telling.incident(state, told), living=living)
    last = told.rung is Rung.DUMP
    if not last and not budget.exceeded(
        charged.incidents, state.fence.attempt, folded=charged.folded, clock=now, when=charged.when
    ):
        return _break(charged, told.reason, now)
    what = "restarts after a hang" if hang else "restarts"
    spent = (
        f"no {what.replace('restarts', 'restart')} is allowed" if budget.limit == 0 else f"all {budget.limit} {what} are spent"
    )
    spent = "the strategy that is left is a last checkpoint" if last else spent
    verdict = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message=f"{told.reason}; {spent}", culprit=told.culprit)
    if dumping.possible(state):
        return _break(dumping.begun(state, told, verdict, now), told.reason, now)
    return telling.verdict(telling.incident(state, dataclasses.replace(told, rung=Rung.EXIT)), verdict, now)


def _scale(state: State, peer: Peer, reason: str, now: float) -> State:
    incident = Incident(
        id=IncidentId(attempt=state.fence.attempt, round=state.fence.round, node=peer.node, sequence=peer.incarnation),
        cause=Cause.SCALE,
        rung=Rung.ELASTIC_TRAINING,
        reason=reason,
        detected_at=now,
        last_step=telling.last_step(state),
    )
    state = dataclasses.replace(telling.incident(state, incident), living=rungs.spares(state, incident.rung))
    return _break(state, reason, now, dead=False)


def _grow(state: State, now: float) -> State:
    here = members(state)
    more = [p for p in waiting(state) if p.report.agent not in places(state.world)]
    if not more or any(p.report.state is AgentState.DONE for p in here):
        return state
    if state.settings.usable(len(state.world) + len(more)) <= len(state.world):
        return state
    nodes = ", ".join(str(p.node) for p in sorted(more, key=lambda p: p.node))
    return _scale(state, more[0], f"node {nodes} joins", now)


def _break(state: State, reason: str, now: float, *, dead: bool = True) -> State:
    """End the running round: everyone is told to regroup. `dead`: somebody is gone whom the others may wait for."""
    if state.state is not JobState.RUNNING:
        return dataclasses.replace(state, dead=state.dead or dead)
    state = dataclasses.replace(state, state=JobState.FORMING, broken=reason, dead=dead, forming_since=now, enough_since=None)
    return telling.event(state, "regroup", reason, now)


def _form(state: State, now: float) -> State:
    """Close a round if it is time, or give up if it is too late."""
    ready = waiting(state)
    usable = state.settings.usable(len(ready))
    if outstanding(state) or checks.running(state) or prechecks.waiting(state):
        return state
    if usable >= state.settings.min_nodes and state.enough_since is None:
        state = dataclasses.replace(state, enough_since=now)
    if usable < state.settings.min_nodes:
        state = dataclasses.replace(state, enough_since=None)
        return _give_up(state, len(ready), now) if now >= state.forming_since + state.settings.join_timeout else state
    if lastworld.blocked(state, ready, now):
        return telling.once(
            state, "fenced", "nobody of the last world is here, and it may still train; waiting until it is over", now
        )
    full = usable == state.settings.usable(state.settings.max_nodes)
    called = state.enough_since is not None and now >= state.enough_since + state.settings.last_call
    if not (full or called or state.world):
        return state
    state, may_train = checks.passed(state, ready, now)
    return _close(state, ready, usable, now) if may_train else state


def _give_up(state: State, joined: int, now: float) -> State:
    bounds = f"{state.settings.min_nodes} to {state.settings.max_nodes}"
    message = (
        f"{joined} of {bounds} nodes joined within the join time-out of {state.settings.join_timeout:g} s"
        f" (rendezvous.join_timeout)"
    )
    return telling.verdict(state, Verdict(outcome=Outcome.FAILED, reason="RendezvousTimeout", message=message), now)


def _close(state: State, ready: Sequence[Peer], usable: int, now: float) -> State:
    """Close the next round with `usable` of the agents that wait; members of the last world come first."""
    state = _charge_echoes(state, now)
    if state.verdict is not None:
        return state
    known = {m.agent for m in state.world}
    chosen = sorted(ready, key=lambda p: (p.report.agent not in known, p.node))[:usable]
    chosen.sort(key=lambda p: p.node)
    fence = state.fence.with_round(state.fence.round + 1)
    world = world_of(chosen)
    kept = rungs.kept_in(state, chosen, world)
    if not kept:
        state = telling.climbed(state)
    state = dataclasses.replace(
        state,
        fence=fence,
        state=JobState.RUNNING,
        world=world,
        kept=kept,
        living=True,
        store=chosen[0].report.store,
        training_port=ports.common(chosen),
        broken="",
        absent=(),
        enough_since=None,
        round_step=None,
    )
    size = sum(m.local_world_size for m in state.world)
    state = telling.began(ports.noted(state, now), now)
    on = f", {kept} of them live on" if kept else ""
    return telling.event(state, "round", f"round {fence.round}: {len(chosen)} nodes, {size} ranks{on}", now)


# --- What is published -----------------------------------------------------------------------------------------------------


def status(state: State, now: float) -> JobStatus:
    """Return what is true of the job, to be published."""
    told = dataclasses.replace(telling.status(state, now), wish=wishes.told(state), tolerance=tolerance.foreign(state))
    told = dataclasses.replace(told, stragglers=straggling.told(state))
    return missing.told(told, state, now)
