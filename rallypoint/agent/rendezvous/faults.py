"""What a fault in a running round leads to: it is charged, others are spared or told to regroup, or the job ends. Pure.

The rules are told in `core.py`; here each is done. `now` is an argument, and every function returns the state after it.

The verdict on a worker's exit comes from the job's extension, the user's rules, exit codes or the table. One agent may tell of
many workers. What a rule, a terminal code or the extension says about any of them that broke by itself is done. The list of
retryable codes, and the table for want of anything else, judge the culprit of the whole round alone: its peers died of it, with
codes that mean nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from rallypoint.agent.culprit import culprit_first, is_collateral
from rallypoint.agent.rendezvous import (
    journal,
    last_checkpoint,
    last_world,
    missing,
    newcomers,
    rungs,
)
from rallypoint.agent.rendezvous.peers import Echoes, Peer, State, living, members
from rallypoint.agent.rendezvous.profile import rules
from rallypoint.agent.rendezvous.settings import Settings
from rallypoint.supervision import verdicts
from rallypoint.supervision.verdicts import Judgement
from rallypoint.wire.failover import Failover
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.status import NODE_LOST, JobState, Outcome, Verdict

__all__ = [
    "ECHO_GRACE",
    "ECHO_LIMIT",
    "charge_echoes",
    "echoes_due",
    "judge_echoes",
    "judge_late",
    "judge_losses",
    "judge_round",
    "lose",
    "restart",
]

#: Seconds for which a failure that looks like an echo of another fault waits for that to show before it is charged itself: at
#: least, and while a member has not reported since or has not ended its round.
ECHO_GRACE, ECHO_LIMIT = 1.0, 5.0

#: What an extension's answers mean in the words of verdicts. A new start of the whole job is the end of this attempt.
_ADVICE = {
    Failover.NODE: (Answer.RETRY_ELSEWHERE, Cause.NODE, ""),
    Failover.GLOBAL: (Answer.RETRY_HERE, Cause.JOB, "GlobalFailover"),
    Failover.ABORT: (Answer.FAIL_NOW, Cause.JOB, "FailNow"),
}


def lose(state: State, peer: Peer, how: str, now: float) -> State:
    """Forget an agent that is gone; if it was in the world, the round is over and somebody is to blame."""
    state = dataclasses.replace(state, peers={k: p for k, p in state.peers.items() if k != peer.report.agent})
    state = missing.lost(last_world.lost(state, peer, now), peer)
    member = next((m for m in state.world if m.agent == peer.report.agent), None)
    if member is None or state.verdict is not None or state.held_verdict is not None or peer.report.state is AgentState.LEAVING:
        return state
    state = rules(state).on_loss(state, peer.node, now)
    incident = journal.node_incident(state, peer, how, now)
    incident = dataclasses.replace(incident, rung=rules(state).loss_rung(state, incident.rung, now))
    # Whatever failed in the same round failed because of this.
    state = dataclasses.replace(_charged(state, incident, keep=rungs.spares(state, incident.rung)), echoes=None)
    return _break(state, incident.reason, now)


def judge_losses(state: State, now: float) -> State:
    """Write a last checkpoint and end the attempt where nothing that the job allows can go on without its lost nodes.

    Where there is nothing to write the incident says `exit`, so that the supervisor does not wait for a checkpoint. That is
    final, and therefore published only when all survivors have regrouped.
    """
    state = _note_leaving(state, now)
    why = rules(state).end_for_losses(state, now)
    told = [i for i in state.incidents if _is_loss(state, i)]
    if why is None or not told:
        return state
    final = any(i.rung is Rung.EXIT for i in told)
    if final or not last_checkpoint.possible(state):
        if not (final or last_checkpoint.regrouped(state)):
            return state
        over = (dataclasses.replace(i, rung=Rung.EXIT) for i in told if i.rung is not Rung.EXIT)
        return functools.reduce(journal.incident, over, state)
    last = max(told, key=lambda incident: incident.detected_at)
    message = f"{last.reason}; {why}"
    verdict = Verdict(outcome=Outcome.FAILED, reason=NODE_LOST, message=message, culprit=last.culprit)
    return last_checkpoint.begin(state, last, verdict, now)


def _is_loss(state: State, incident: Incident) -> bool:
    """Return whether an incident is the loss of an awaited node, or its leave from this round (a drained pod)."""
    lost = frozenset[int]() if state.loss is None else state.loss.nodes
    if incident.id.attempt != state.fence.attempt or incident.id.node not in lost:
        return False
    return incident.cause is Cause.NODE or (incident.cause is Cause.SCALE and incident.id.round == state.fence.round)


def _note_leaving(state: State, now: float) -> State:
    """Add the members to the loss that leave while the next round is forming."""
    for peer in members(state):
        if state.loss is not None and peer.report.state is AgentState.LEAVING and peer.node not in state.loss.nodes:
            state = _leave(state, peer, now)
    return state


def _leave(state: State, peer: Peer, now: float) -> State:
    """Return the state after a member left its round."""
    if peer.node < state.settings.max_nodes:
        state = rules(state).on_loss(state, peer.node, now)
    reason = f"node {peer.node} leaves the job: {peer.report.reason or 'the supervisor removes this node'}"
    if peer.report.incarnation and not rules(state).scale_per_round:
        # The supervisor reports the end of this incarnation under the same id, so one end is one incident.
        return _scale(state, peer, reason, now, rung=journal.without(state, peer), round_=0)
    rung = rules(state).loss_rung(state, Rung.ELASTIC_TRAINING, now)
    return _scale(state, peer, reason, now, rung=rung, round_=state.fence.round)


def judge_round(state: State, now: float) -> State:
    """Decide whether the running round is over, and how."""
    here = members(state)
    failed = [p for p in here if p.report.round == state.fence.round and _ended_badly(p.report)]
    if failed and _may_be_echoes(state, failed) and not any(_extension_ruling(state.settings, p) for p in failed):
        state = state.with_forming(keep=rungs.spares(state, rules(state).process_rung(state, failed, now)))
        state = dataclasses.replace(state, echoes=Echoes(peers=tuple(failed), since=now))
        return _break(state, journal.process_incident(state, failed, now).reason, now)
    if failed:
        return _fail_round(state, failed, now)
    leaving = next((p for p in here if p.report.state is AgentState.LEAVING), None)
    if leaving is not None:
        return _leave(state, leaving, now)
    if len(here) == len(state.world) and all(p.report.state is AgentState.DONE for p in here):
        size, nodes = sum(m.local_world_size for m in state.world), f"{len(here)} node{'' if len(here) == 1 else 's'}"
        message = f"all ranks succeeded ({nodes}, {size} rank{'' if size == 1 else 's'})"
        left = (p.report.result for p in here)
        state = dataclasses.replace(state, result=next((result for result in left if result is not None), None))
        return journal.verdict(state, Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message=message), now)
    return _grow(journal.trained(journal.healed(state, now), now), now)


def _ended_badly(report: AgentReport) -> bool:
    # An agent that waits although the round runs has dropped out of it: what it says failed, failed.
    return report.state in (AgentState.FAILED, AgentState.WAITING)


def _may_be_echoes(state: State, failed: list[Peer]) -> bool:
    """Return whether somebody else may be to blame: a member is out of touch, or all that is told is of lost connections."""
    failures = [failure for peer in failed for failure in peer.report.failures]
    if len(state.world) == 1:  # its one agent has seen all there is to see
        return False
    return any(p.gone_at is not None for p in members(state)) or (bool(failures) and all(map(is_collateral, failures)))


def judge_echoes(state: State, echoes: Echoes, now: float) -> State:
    """Charge the fault behind the echoes once it is reported; for want of one, the echoes themselves."""
    told = [p for p in members(state) if p.report.round == state.fence.round and p.report.failures]
    causes = [p for p in told if not all(map(is_collateral, p.report.failures))]
    if causes and all(p.gone_at is None for p in members(state)):
        return _fail_round(dataclasses.replace(state, echoes=None), causes, now)
    return charge_echoes(state, echoes, now) if now >= echoes_due(state, echoes) else state


def echoes_due(state: State, echoes: Echoes) -> float:
    """Return when the echoes themselves are charged: later while a member may still report the fault behind them.

    On an overloaded machine an agent is late to report, or late to notice that its worker ended.
    """
    late = any(p.gone_at is None and (p.heard_at < echoes.since or _still_trains(state, p)) for p in members(state))
    return echoes.since + (ECHO_LIMIT if late else ECHO_GRACE)


def _still_trains(state: State, peer: Peer) -> bool:
    """Return whether an agent has not yet reported the end of the round that is over."""
    return peer.report.state is AgentState.RUNNING and peer.report.round == state.fence.round


def charge_echoes(state: State, echoes: Echoes, now: float) -> State:
    """Charge the echoes of a fault that was not reported."""
    return _fail_round(dataclasses.replace(state, echoes=None), list(echoes.peers), now)


def _fail_round(state: State, failed: list[Peer], now: float) -> State:
    """Do what the verdicts on a round's failures ask for: end the job, send nodes away, or restart the workers."""
    state, ruled = _rule(state, failed, now)
    if ruled:
        return state
    told = dataclasses.replace(journal.process_incident(state, failed, now), rung=rules(state).process_rung(state, failed, now))
    found = _culprit_ruling(state.settings, failed)
    state = rules(state).on_process_fault(state, failed, told.rung, now)
    if found is not None:
        peer, culprit, judged = found
        if judged.reason:
            return _end(state, peer, culprit, judged, now)
        told = journal.judged_incident(told, judged)
    leaving = rules(state).pods_to_replace(state, _broken_first(failed)) if told.rung is Rung.RECOVER else ()
    return _replace_pods(state, leaving, told, now) if leaving else restart(state, told, now)


def _broken_first(failed: Sequence[Peer]) -> list[Peer]:
    """Return the agents with a worker that broke by itself; where all tell of lost connections, the one that broke first."""
    own = [peer for peer in failed if not all(map(is_collateral, peer.report.failures))]
    if own:
        return own
    owners = {failure: peer for peer in failed for failure in peer.report.failures}
    return [owners[culprit_first(owners)[0]]] if owners else list(failed)


def _replace_pods(state: State, leaving: Sequence[Peer], told: Incident, now: float) -> State:
    """Let the pods of broken workers be replaced, while the workers of all others live on."""
    for peer in leaving:
        culprit = next(iter(culprit_first(peer.report.failures)), told.culprit)
        kind = verdicts.classify(verdicts.worker_end(culprit)) if culprit is not None else FaultKind.EXIT_CODE
        rule = "strategy recover: replacing its pod; the other workers continue"
        judged = Judgement(kind=kind, answer=Answer.RETRY_ELSEWHERE, cause=Cause.NODE, rule=rule)
        state = _send_away(state, peer, culprit, judged, now, rung=Rung.RECOVER)
    return state


def _rule(state: State, failed: list[Peer], now: float) -> tuple[State, bool]:
    """Do what is asked for by name: end the job, or send nodes away; return whether anything was."""
    ruled = [(peer, *found) for peer in failed if (found := _peer_ruling(state.settings, peer)) is not None]
    final = next((one for one in ruled if one[2].reason), None)
    if final is not None:
        return _end(state, *final, now), True
    for peer, culprit, judged in ruled:
        state = _send_away(state, peer, culprit, judged, now)
    return state, bool(ruled)


def judge_late(state: State, now: float) -> State:
    """Rule on what is told of the last round after it was broken: the answer of an extension, or a second fault of its own.

    Whatever failed in a round that lost a node failed because of that, and only an extension may still say something about it.
    """
    late = [p for p in living(state) if p.report.round == state.fence.round and p.report.agent not in state.away]
    broken_by_worker = any(
        i.cause is Cause.PROCESS and (i.id.attempt, i.id.round) == (state.fence.attempt, state.fence.round)
        for i in state.incidents
    )
    if not broken_by_worker:
        late = [p for p in late if _extension_ruling(state.settings, p) is not None]
    return _rule(state, [p for p in late if p.report.failures], now)[0]


def _end(state: State, peer: Peer, culprit: Culprit | None, judged: Judgement, now: float) -> State:
    """End the attempt as a verdict asks for; whether the job ends with it is the supervisor's to say."""
    told = journal.judged_incident(journal.process_incident(state, [peer], now, culprit), judged)
    rung = Rung.EXIT if judged.answer is Answer.FAIL_NOW else Rung.RESET
    state = journal.incident(state, dataclasses.replace(told, rung=rung))
    message = f"{told.reason}; {judged.rule}"
    given = Verdict(outcome=Outcome.FAILED, reason=judged.reason, message=message, culprit=told.culprit)
    return journal.verdict(state, given, now)


def _send_away(
    state: State, peer: Peer, culprit: Culprit | None, judged: Judgement, now: float, *, rung: Rung | None = None
) -> State:
    """Let an agent leave, so that another node takes its place; the others regroup without it.

    `rung` is what answers the fault; None is what answers the loss of the node.
    """
    state = dataclasses.replace(state, away=state.away | {peer.report.agent}, echoes=None)
    state = rules(state).on_loss(state, peer.node, now)
    told = journal.away_incident(state, peer, culprit, judged, now)
    told = dataclasses.replace(told, rung=rung or rules(state).loss_rung(state, told.rung, now))
    state = _charged(state, told, keep=rungs.spares(state, told.rung))
    return _break(journal.event(state, "sent-away", told.reason, now), told.reason, now)


def restart(state: State, told: Incident, now: float) -> State:
    """Charge an incident and have everyone regroup; where its budget is spent, end the attempt, after a last checkpoint."""
    rescheduled = rules(state).leaves_instead(state)
    if rescheduled is not None:
        return _send_away(state, rescheduled[0], told.culprit, rescheduled[1], now)
    hang = told.cause is Cause.HANG
    budget = state.settings.hangs if hang else state.settings.restarts
    charged = _charged(state, told, keep=not hang and rungs.spares(state, told.rung))
    last = told.rung in (Rung.DUMP, Rung.EXIT)
    if not last and not budget.exceeded(
        charged.incidents, state.fence.attempt, folded=charged.folded, clock=now, when=charged.when
    ):
        return _break(charged, told.reason, now)
    what = "restarts after a hang" if hang else "restarts"
    spent = f"{what} are disabled (the limit is 0)" if budget.limit == 0 else f"no {what} left (limit: {budget.limit})"
    spent = f"the remaining strategy is {told.rung.value}" if last else spent
    verdict = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message=f"{told.reason}; {spent}", culprit=told.culprit)
    if last_checkpoint.possible(state):
        return _break(last_checkpoint.begin(state, told, verdict, now), told.reason, now)
    leaving = None if hang else rules(state).pod_that_ends(state, told)
    if leaving is not None:
        return _end_pod(state, leaving, told, spent, now)
    return journal.verdict(journal.incident(state, dataclasses.replace(told, rung=Rung.EXIT)), verdict, now)


def _end_pod(state: State, peer: Peer, told: Incident, why: str, now: float) -> State:
    """End a container whose restarts are used up; `max_restarts` counts from 0 for the next one."""
    faults = [dataclasses.replace(i, refilled=True) for i in (*state.incidents, told) if i.cause is Cause.PROCESS]
    folded = tuple(dataclasses.replace(f, refilled=f.count) if f.cause is Cause.PROCESS else f for f in state.folded)
    state = dataclasses.replace(state, incidents=merge_incidents(state.incidents, faults), folded=folded)
    kind = told.kind or FaultKind.EXIT_CODE
    judged = Judgement(kind=kind, answer=Answer.RETRY_ELSEWHERE, cause=Cause.NODE, rule=f"{why}; its container exits")
    rung = Rung.EXIT if told.rung is Rung.EXIT else None
    state = _send_away(state, peer, told.culprit, judged, now, rung=rung)
    # `exit` and a spent budget restart all workers of the pods that stay.
    return state.with_forming(keep=False)


def _scale(state: State, peer: Peer, reason: str, now: float, *, round_: int, rung: Rung = Rung.ELASTIC_TRAINING) -> State:
    incident = Incident(
        id=IncidentId(attempt=state.fence.attempt, round=round_, node=peer.node, sequence=peer.incarnation),
        cause=Cause.SCALE,
        rung=rung,
        reason=reason,
        detected_at=now,
        last_step=journal.last_step(state),
    )
    state = _charged(state, incident, keep=rungs.spares(state, incident.rung))
    return _break(state, reason, now, dead=False)


def _grow(state: State, now: float) -> State:
    state = newcomers.noted(state, now)
    more = newcomers.joining(state, now)
    if not more:
        return state
    nodes = ", ".join(str(p.node) for p in sorted(more, key=lambda p: p.node))
    return _scale(state, more[0], f"node {nodes} joins", now, round_=state.fence.round)


def _charged(state: State, told: Incident, *, keep: bool) -> State:
    """Return the state with an incident; `keep`: workers may live on into the next round for it."""
    return journal.incident(state, told).with_forming(keep=keep)


def _break(state: State, reason: str, now: float, *, dead: bool = True) -> State:
    """End the running round: everyone is told to regroup. `dead`: somebody is gone whom the others may wait for."""
    if state.state is not JobState.RUNNING:
        return state.with_forming(dead=state.forming.dead or dead)
    state = state.with_forming(since=now, enough_since=None, reason=reason, dead=dead)
    state = dataclasses.replace(state, state=JobState.FORMING)
    return journal.event(state, "regroup", reason, now)


def _extension_ruling(settings: Settings, peer: Peer) -> tuple[Culprit | None, Judgement] | None:
    """Return what the extension of the job asks for, or None where it leaves the decision to the rules."""
    report = peer.report
    if report.failover not in _ADVICE:
        return None
    culprit = culprit_first(report.failures)[0] if report.failures else None
    kind = FaultKind.EXIT_CODE if culprit is None else verdicts.classify(verdicts.worker_end(culprit))
    answer, cause, reason = _ADVICE[report.failover]
    rule = f"extension {settings.failover_extension} returned {report.failover.name}"
    judged = Judgement(kind=kind, answer=answer, cause=cause, rule=rule, reason=reason)
    return None if _impossible(settings, judged) else (culprit, judged)


def _peer_ruling(settings: Settings, peer: Peer) -> tuple[Culprit | None, Judgement] | None:
    """Return what must be done for one of an agent's workers, and which; None when they may all be restarted."""
    found = _extension_ruling(settings, peer)
    if found is not None:
        return found
    own = [failure for failure in culprit_first(peer.report.failures) if not is_collateral(failure)]
    judged = [(failure, _judge(settings, peer, failure, retryable=())) for failure in own]
    fatal = next(((f, j) for f, j in judged if j.answer is Answer.FAIL_NOW), None)
    if fatal is not None:
        return fatal
    return next(((f, j) for f, j in judged if j.answer is Answer.RETRY_ELSEWHERE and not _impossible(settings, j)), None)


def _culprit_ruling(settings: Settings, failed: Sequence[Peer]) -> tuple[Peer, Culprit, Judgement] | None:
    """Return the verdict on the worker that broke the round, with its agent; None if no worker is reported."""
    owners = {failure: peer for peer in failed for failure in peer.report.failures}
    if not owners:
        return None
    culprit = culprit_first(owners)[0]
    peer = owners[culprit]
    judged = _judge(settings, peer, culprit, retryable=settings.retryable_exit_codes)
    if _impossible(settings, judged):
        rule = f"{judged.rule}; restarting the workers because node replacement is disabled (node_replacements is 0)"
        judged = dataclasses.replace(judged, answer=Answer.RETRY_HERE, cause=Cause.PROCESS, rule=rule)
    if peer.report.failover_note:
        judged = dataclasses.replace(judged, rule=f"{judged.rule}; {peer.report.failover_note}")
    return peer, culprit, judged


def _judge(settings: Settings, peer: Peer, failure: Culprit, retryable: tuple[int, ...]) -> Judgement:
    first = peer.report.fence.attempt <= 1 and peer.report.round == 1
    return verdicts.judge(
        verdicts.worker_end(failure, first=first),
        rules=settings.end_rules,
        terminal=settings.terminal_exit_codes,
        retryable=retryable,
    )


def _impossible(settings: Settings, judged: Judgement) -> bool:
    return judged.answer is Answer.RETRY_ELSEWHERE and not settings.elsewhere
