"""How the rendezvous tells what happened: incidents, events, progress, the published status. Pure."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools

from rallypoint.agent.culprit import culprit_first
from rallypoint.agent.rendezvous.lookup import of_world, places
from rallypoint.agent.rendezvous.peers import Peer, State, living, members
from rallypoint.agent.rendezvous.series import few, sampled
from rallypoint.supervision.folding import fold_told
from rallypoint.supervision.verdicts import Judgement
from rallypoint.wire.incident import FREE, Answer, Cause, Culprit, FaultKind, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.messages import SENT_AWAY, AgentReport, AgentState, WorkerReport
from rallypoint.wire.status import Event, JobState, JobStatus, Member, Outcome, Progress, RankStatus, Sample, Verdict

__all__ = [
    "away_incident",
    "began",
    "climbed",
    "describe",
    "digest",
    "event",
    "farewell",
    "healed",
    "incident",
    "judged_incident",
    "last_step",
    "node_incident",
    "process_incident",
    "progress",
    "refilled",
    "status",
    "verdict",
]

#: Lines of the story kept; the oldest go first.
EVENT_LIMIT = 300


def event(state: State, kind: str, detail: str, now: float) -> State:
    """Return the state with one more line of its story."""
    line = Event(at=now, kind=kind, detail=detail, round=state.fence.round)
    return dataclasses.replace(state, events=(*state.events, line)[-EVENT_LIMIT:])


def once(state: State, kind: str, detail: str, now: float) -> State:
    """Return the state with a line of its story, unless that is the last line already."""
    last = state.events[-1] if state.events else None
    return state if last is not None and (last.kind, last.detail) == (kind, detail) else event(state, kind, detail, now)


def incident(state: State, told: Incident) -> State:
    """Return the state with an incident added, or joined with what is known of it; the oldest of many become counts."""
    course = state.course
    if all(known.id != told.id for known in state.incidents):
        course = course.paused() if told.cause in FREE else course.after_fault()
    known = merge_incidents(state.incidents, (told,))
    incidents, folded = fold_told(known, state.folded, state.fence.attempt)
    lost = state.lost if len(incidents) == len(known) else _lost_with(state, known, incidents)
    return dataclasses.replace(state, incidents=incidents, folded=folded, lost=lost, course=course)


def _lost_with(state: State, known: tuple[Incident, ...], kept: tuple[Incident, ...]) -> dict[str, float]:
    """Return the seconds lost with those of the incidents that became counts."""
    ids, lost = {i.id for i in kept}, dict(state.lost)
    for i in known:
        if i.id not in ids and i.healed_at is not None and i.id.attempt == state.fence.attempt:
            lost[i.cause.value] = round(lost.get(i.cause.value, 0.0) + max(0.0, i.healed_at - i.detected_at), 3)
    return lost


def refilled(state: State, now: float) -> State:
    """Return the state with a mark on each process fault and each hang that counts no more."""
    incidents = state.incidents
    for budget in (state.settings.restarts, state.settings.hangs):
        incidents = budget.refilled(incidents, state.course, clock=now, when=state.when)
    return state if incidents is state.incidents else dataclasses.replace(state, incidents=incidents)


def verdict(state: State, given: Verdict, now: float) -> State:
    """Return the state with its verdict."""
    over = JobState.SUCCEEDED if given.outcome is Outcome.SUCCEEDED else JobState.FAILED
    return event(dataclasses.replace(state, state=over, verdict=given), over.value, given.message, now)


def node_incident(state: State, peer: Peer, how: str, now: float) -> Incident:
    """Return the incident of a node that is gone; what its end asks for, only the supervisor can see."""
    return Incident(
        id=IncidentId(attempt=state.fence.attempt, round=0, node=peer.node, sequence=peer.incarnation),
        cause=Cause.NODE,
        rung=_without(state, peer),
        reason=f"node {peer.node} on {peer.report.host} {how}",
        culprit=Culprit(node=peer.node, incarnation=peer.incarnation, host=peer.report.host, at=now),
        detected_at=now,
        last_step=last_step(state),
        kind=FaultKind.NODE_LOST,
    )


def away_incident(state: State, peer: Peer, culprit: Culprit | None, judged: Judgement, now: float) -> Incident:
    """Return the incident of a node that must leave for what happened to one of its workers.

    It has the id of the node's end, which follows from it: one fault, charged once.
    """
    said = f"node {peer.node} on {peer.report.host} failed" if culprit is None else describe(culprit)
    return dataclasses.replace(
        node_incident(state, peer, "must leave", now),
        reason=f"{said}; node {peer.node} must leave: {judged.rule}",
        culprit=culprit,
        kind=judged.kind,
        answer=Answer.RETRY_ELSEWHERE,
        rule=judged.rule,
    )


def _without(state: State, peer: Peer) -> Rung:
    """Return the rung that answers the loss of a member: the others go on if there are enough."""
    left = [m for m in state.world if m.agent != peer.report.agent]
    return Rung.ELASTIC_TRAINING if len(left) >= state.settings.min_nodes else Rung.RECOVER


def farewell(state: State, agent: str) -> Verdict:
    """Return what an agent is told that was sent away."""
    # Who was sent away by a node check may be in no world yet.
    known = state.peers.get(agent) or next((m for m in state.world if m.agent == agent), None)
    node = (-1, -1) if known is None else (known.node, known.incarnation)
    found = next((i for i in state.incidents if i.cause is Cause.NODE and (i.id.node, i.id.sequence) == node), None)
    message = "another node takes the place of this one" if found is None else found.reason
    return Verdict(outcome=Outcome.FAILED, reason=SENT_AWAY, message=message, culprit=None if found is None else found.culprit)


def judged_incident(told: Incident, judged: Judgement) -> Incident:
    """Return an incident with its verdict."""
    cause = Cause.HANG if judged.cause is Cause.HANG else told.cause
    return dataclasses.replace(told, cause=cause, kind=judged.kind, answer=judged.answer, rule=judged.rule)


def process_incident(state: State, failed: list[Peer], now: float, culprit: Culprit | None = None) -> Incident:
    """Return the one incident of a round in which workers ended badly on `failed` nodes; `culprit` is the first by default."""
    failures = [failure for peer in failed for failure in peer.report.failures]
    if culprit is None and failures:
        culprit = culprit_first(failures)[0]
    first = failed[0]
    reason = first.report.reason or "its agent gave the round up" if culprit is None else describe(culprit)
    return Incident(
        id=IncidentId(
            attempt=state.fence.attempt,
            round=state.fence.round,
            node=first.node if culprit is None else culprit.node,
            local_rank=-1 if culprit is None else culprit.local_rank,
        ),
        cause=Cause.PROCESS,
        rung=Rung.RESTART_WORKERS,
        reason=f"node {first.node} on {first.report.host}: {reason}" if culprit is None else reason,
        culprit=culprit,
        detected_at=now,
        last_step=last_step(state),
    )


def climbed(state: State) -> State:
    """Return the state where nobody lives on after all: what should have been healed in the processes restarts them."""
    hoped = [
        dataclasses.replace(i, rung=Rung.RESTART_WORKERS)
        for i in state.incidents
        if i.rung in (Rung.RETRY, Rung.RECOVER_IN_PLACE) and _of_round(state, i)
    ]
    return dataclasses.replace(state, incidents=merge_incidents(state.incidents, hoped)) if hoped else state


def _of_round(state: State, told: Incident) -> bool:
    return (told.id.attempt, told.id.round) == (state.fence.attempt, state.fence.round)


def last_step(state: State) -> int | None:
    """Return the furthest step that any rank of the round is known to have reached: training goes on from behind it.

    The node that broke has just told its own, while the lowest rank's node may not have spoken for a whole report interval.
    """
    told = [
        worker.step
        for peer in members(state)
        if peer.report.round == state.fence.round
        for worker in peer.report.workers
        if worker.step is not None
    ]
    known = [] if state.progress.step is None else [state.progress.step]
    return max((*told, *known), default=None)


def describe(culprit: Culprit) -> str:
    """Return one sentence: which rank on which node ended how."""
    how = f"was ended by signal {culprit.signal}" if culprit.signal is not None else f"ended with exit code {culprit.exit_code}"
    if culprit.lives:
        how = "raised in a step, and lives"
    said = f": {culprit.error}" if culprit.error else ""
    return f"rank {culprit.rank} (local rank {culprit.local_rank}) on node {culprit.node} ({culprit.host}) {how}{said}"


def progress(state: State, report: AgentReport, now: float) -> State:
    """Return the state with the progress that a report tells, if its lowest reporting rank is the lowest known."""
    member = _member(state, report)
    if member is None or report.round != state.fence.round:
        return state
    speaker = next((w for w in report.workers if w.step is not None), None)
    if speaker is None or _lower_rank_speaks(state, member):
        return state
    state = _first_step(_advance(state, speaker, now), speaker, now)
    return dataclasses.replace(state, course=state.course.reported(state.progress, now))


def _advance(state: State, speaker: WorkerReport, now: float) -> State:
    newer = speaker.checkpoint not in ("", state.progress.checkpoint)
    told = Progress(
        step=speaker.step,
        metrics=speaker.metrics,
        checkpoint=speaker.checkpoint or state.progress.checkpoint,
        checkpoint_at=now if newer else state.progress.checkpoint_at,
        resumed_from=speaker.resumed_from,
        at=now if speaker.step != state.progress.step else state.progress.at,
    )
    if told.step is None or told.step == state.progress.step:
        return dataclasses.replace(state, progress=told)
    sample = dataclasses.replace(_moment(state, now), step=told.step, metrics=few(told.metrics))
    return dataclasses.replace(state, progress=told, samples=sampled(state.samples, sample))


def began(state: State, now: float) -> State:
    """Return the state with the beginning of its round among the samples."""
    return dataclasses.replace(state, samples=sampled(state.samples, _moment(state, now)))


def _moment(state: State, now: float) -> Sample:
    size = sum(member.local_world_size for member in state.world)
    return Sample(at=round(now, 3), round=state.fence.round, world_size=size)


def _first_step(state: State, speaker: WorkerReport, now: float) -> State:
    """Note where a round resumed: what the script says, or else the step before the first one it reports."""
    if state.round_step is not None or speaker.step is None:
        return state
    resumed = max(0, speaker.step - 1) if speaker.resumed_from is None else speaker.resumed_from
    state = dataclasses.replace(state, round_step=speaker.step)
    incidents = tuple(
        dataclasses.replace(i, healed_at=now, resumed_step=resumed)
        for i in state.incidents
        if i.healed_at is None and i.id.attempt == state.fence.attempt
    )
    state = dataclasses.replace(state, incidents=merge_incidents(state.incidents, incidents))
    return event(state, "resumed" if state.fence.round > 1 else "first-step", f"step {speaker.step}, from {resumed}", now)


def healed(state: State, now: float) -> State:
    """Mark incidents healed once a whole world runs again, where no step tells it better."""
    everyone = len(members(state)) == len(state.world)
    if not everyone or any(p.report.round != state.fence.round for p in members(state)):
        return state
    incidents = tuple(
        dataclasses.replace(i, healed_at=now)
        for i in state.incidents
        if i.healed_at is None and i.last_step is None and i.id.attempt == state.fence.attempt and not _goes_on(state, i)
    )
    return dataclasses.replace(state, incidents=merge_incidents(state.incidents, incidents)) if incidents else state


def _goes_on(state: State, told: Incident) -> bool:
    """Return whether an incident is a hang about which nothing was done: that the world is whole heals nothing."""
    return told.rung is Rung.NOTIFY and told.id.round == state.fence.round


def _member(state: State, report: AgentReport) -> Member | None:
    return places(state.world).get(report.agent)


def _lower_rank_speaks(state: State, member: Member) -> bool:
    # In order of rank: the first one speaks as a rule, so nobody else is looked at.
    lower = itertools.takewhile(lambda m: m.first_rank < member.first_rank, state.world)
    known = (state.peers[m.agent].report for m in lower if m.agent in state.peers)
    return any(r.round == state.fence.round and any(w.step is not None for w in r.workers) for r in known)


def digest(state: State) -> str:
    """Return a name of the set of members and the round, equal for all of them."""
    return hashlib.sha256(f"{state.uid} {state.fence} {_in_words(state.world)}".encode()).hexdigest()[:16]


@of_world
def _in_words(world: tuple[Member, ...]) -> str:
    text = " ".join(f"{m.node}.{m.incarnation}.{m.agent}" for m in world)
    return hashlib.sha256(text.encode()).hexdigest()


def status(state: State, now: float) -> JobStatus:
    """Return what is published."""
    world = tuple(dataclasses.replace(m, done=_done(state, m)) for m in state.world)
    known = {m.agent for m in state.world}
    waiting = tuple(
        Member(
            node=p.node,
            incarnation=p.incarnation,
            agent=p.report.agent,
            host=p.report.host,
            local_world_size=p.report.local_world_size,
        )
        for p in sorted(living(state), key=lambda p: p.node)
        if p.report.state is AgentState.WAITING and (state.state is JobState.FORMING or p.report.agent not in known)
    )
    return JobStatus(
        job=state.job,
        uid=state.uid,
        fence=state.fence,
        state=state.state,
        world=world,
        waiting=waiting,
        store=state.store,
        ranks=_ranks(state),
        phases=_phases(state),
        progress=state.progress,
        incidents=state.incidents,
        folded=state.folded,
        lost=dict(state.lost),
        events=state.events,
        samples=state.samples,
        verdict=state.verdict,
        hang=state.hang,
        learned=state.learned,
        check=state.checks.told,
        tuning=state.tuning,
        training_port=state.training_port,
        pre_checks=state.prechecks.told,
        updated_at=now,
        result=state.result,
    )


def _done(state: State, member: Member) -> bool:
    peer = state.peers.get(member.agent)
    done = peer is not None and peer.report.state is AgentState.DONE and peer.report.round == state.fence.round
    return done or (peer is None and member.done)


def _ranks(state: State) -> tuple[RankStatus, ...]:
    return tuple(
        RankStatus(rank=m.first_rank + w.local_rank, node=m.node, local_rank=w.local_rank, pid=w.pid, step=w.step)
        for m in state.world
        if m.agent in state.peers and state.peers[m.agent].report.round == state.fence.round
        for w in state.peers[m.agent].report.workers
    )


def _phases(state: State) -> dict[str, int]:
    """Return how many workers of the running round are in which phase."""
    told = (
        worker.phase.value
        for peer in members(state)
        if peer.report.round == state.fence.round
        for worker in peer.report.workers
        if worker.phase is not None
    )
    return dict(sorted(collections.Counter(told).items()))
