"""What the coordinator does about a world that hangs: it doubts, asks the agents what they find, decides, and tells. Pure.

A decision waits for the evidence of the agents, `EVIDENCE_WITHIN` seconds at the most: it names who is to blame.
`deadlock.decide` says what follows. A silence without positive evidence is notified at most, until `hang_downtime` is over.
Then, or with positive evidence, there is a verdict, and `hang_detection` says what is done:

- 0: a line in the job's story, and so in the log.
- 1: an incident as well (rung `notify`). Nothing is restarted and no budget pays. A later sign of life heals it.
- 2: the incident restarts the workers, and the budget of hangs pays, as it does for a collective that timed out.

In a status the doubt and the verdict stand whatever `hang_detection` is, until a rank shows a sign of life or another round
runs.
"""

from __future__ import annotations

import dataclasses

from rallypoint.agent.rendezvous import telling
from rallypoint.agent.rendezvous.health import hang
from rallypoint.agent.rendezvous.health import known as hang_known
from rallypoint.agent.rendezvous.health.blame import Ranks, blame, far, waits
from rallypoint.agent.rendezvous.health.deadlock import Clock, Deadlock, Decision, decide, evidence_of, find_deadlock
from rallypoint.agent.rendezvous.health.doubt import borne_out
from rallypoint.agent.rendezvous.health.hang import Watch
from rallypoint.agent.rendezvous.health.words import groups, place
from rallypoint.agent.rendezvous.health.words import places as places_of
from rallypoint.agent.rendezvous.lookup import places
from rallypoint.agent.rendezvous.peers import Inquiry, State, members
from rallypoint.wire.hang import Hang, HangState, RankSeen
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.messages import AgentReport, AgentState, Continue
from rallypoint.wire.status import JobState, JobStatus

__all__ = [
    "EVIDENCE_WITHIN",
    "LOG_ONLY",
    "NOTIFY",
    "RECOVER",
    "asks",
    "concluded",
    "due",
    "heard",
    "inherited",
    "pace",
    "tidied",
]

#: Seconds for which a verdict waits for what the agents find.
EVIDENCE_WITHIN = 5.0

#: The values of `hang_detection`.
LOG_ONLY, NOTIFY, RECOVER = 0, 1, 2

#: Seconds of silence after which a doubt is a line of the story, where half of `hang_downtime` is not shorter. An evaluation or
#: a download that takes longer than the steps before it is none.
_WORTH_TELLING = 60.0


def inherited(state: State, previous: JobStatus) -> State:
    """Return the state of a coordinator that takes over: what was told stays true until somebody shows a sign of life."""
    told = previous.hang
    if told is None or told.round != previous.fence.round:
        return state
    watch = Watch(
        round=told.round,
        begun=True,
        quiet_since=told.quiet_since,
        doubt_at=told.since,
        verdict_at=told.verdict_at,
        settled=told.state is HangState.VERDICT,
    )
    return dataclasses.replace(state, watch=dataclasses.replace(watch, counted_at=state.since), hang=told)


# --- What is heard ---------------------------------------------------------------------------------------------------------


def heard(state: State, before: AgentReport | None, report: AgentReport, now: float) -> State:
    """Return the state with what a report of a running worker's agent tells of life; `before` is that agent's last one."""
    round_ = state.fence.round
    if state.state is not JobState.RUNNING or report.round != round_ or report.state is not AgentState.RUNNING:
        return state
    if report.agent not in places(state.world):
        return state
    sign = hang.sign_of(before, report)
    if sign.life:
        # The first report to a new coordinator tells of life that may be long ago.
        state = state.with_life(max(state.lively_at, now - (sign.age or 0.0)))
    if state.settings.hang_downtime <= 0:
        return state
    watch = state.watch if state.watch.round == round_ else Watch.fresh(round_, now)
    state = hang_known.renewed(state, now)
    # Where there is life nobody else has to be heard, and most reports tell of life.
    expected = frozenset() if sign.life else _expected(state)
    judged = hang.judge(watch, sign, expected, state.settings.silence, now, lambda: hang_known.bound_of(state))
    state = _told(state.with_watch(judged), now)
    return _found(state, report)


def _expected(state: State) -> frozenset[str]:
    """Return the agents of the world whose workers have not all ended well."""
    done = {p.report.agent for p in members(state) if p.report.state is AgentState.DONE and p.report.round == state.fence.round}
    return frozenset(member.agent for member in state.world) - done


def _told(state: State, now: float) -> State:
    """Tell what is thought of the world now, where that is something else than before."""
    watch, known = state.watch, state.hang
    if watch.state is None:
        return state if known is None else _over(state, known, now)
    if known is None and watch.doubt_at is not None:
        doubt = Hang(round=watch.round, state=HangState.DOUBT, quiet_since=watch.quiet_since, since=now)
        known = dataclasses.replace(doubt, reason=_silence(watch))
        state = dataclasses.replace(state, hang=known)
        # By the short clock it is a line of the story only when the agents have looked into their workers.
        if watch.quiet >= _half(state) or not watch.begun:
            state = _doubt_told(state, known.reason, now)
    if watch.state is HangState.VERDICT and state.inquiry is None and not watch.settled:
        state = dataclasses.replace(state, inquiry=Inquiry(number=_number(state), since=now))
    return state


def _doubt_told(state: State, reason: str, now: float) -> State:
    """Return the state with a doubt in its story, once in a silence."""
    return state if _is_told(state) else telling.event(state, "hang-doubt", reason, now)


def _is_told(state: State) -> bool:
    """Return whether the story has the silence that goes on."""
    mine = (event.kind for event in reversed(state.events) if event.round == state.fence.round)
    return next((kind for kind in mine if kind.startswith("hang")), "hang-over") != "hang-over"


def _half(state: State) -> float:
    return state.settings.hang_downtime / 2


def _over(state: State, known: Hang, now: float) -> State:
    """Take a doubt or a verdict back: somebody showed a sign of life."""
    incidents = tuple(
        dataclasses.replace(i, healed_at=now) for i in state.incidents if i.id == known.incident and i.healed_at is None
    )
    state = dataclasses.replace(
        state, hang=None, inquiry=None, incidents=merge_incidents(state.incidents, incidents) if incidents else state.incidents
    )
    if not _is_told(state):
        return state
    quiet = _span(max(0.0, now - known.quiet_since))
    return telling.event(state, "hang-over", f"training made progress after {quiet}", now)


def _found(state: State, report: AgentReport) -> State:
    """Keep what an agent has found for the inquiry that runs."""
    inquiry, evidence = state.inquiry, report.evidence
    if inquiry is None or evidence is None or (evidence.round, evidence.number) != (report.round, inquiry.number):
        return state
    found = dataclasses.replace(inquiry, found={**inquiry.found, report.agent: evidence})
    return dataclasses.replace(state, inquiry=found)


def asks(state: State, agent: str) -> Continue | None:
    """Return the request for what an agent can find, where it is asked and has not answered."""
    inquiry = state.inquiry
    if inquiry is None or agent in inquiry.found or state.state is not JobState.RUNNING:
        return None
    return Continue(fence=state.fence, evidence=inquiry.number)


# --- What follows ----------------------------------------------------------------------------------------------------------


def pace(state: State) -> float:
    """Return in how many seconds an agent shall report again, 0.0 for as usual."""
    return hang.PACE if state.state is JobState.RUNNING and hang.doubted(state.watch) else 0.0


def due(state: State) -> float | None:
    """Return until when a verdict waits for the agents, None where none does."""
    return None if state.inquiry is None else state.inquiry.since + EVIDENCE_WITHIN


def tidied(state: State) -> State:
    """Return the state without what belongs to a round that is over; a verdict stays until the next one runs."""
    state = hang_known.handed_on(state)
    if state.inquiry is not None and state.state is not JobState.RUNNING:
        state = dataclasses.replace(state, inquiry=None)
    told = state.hang
    if told is None or (told.round == state.fence.round and state.state is JobState.RUNNING):
        return state
    stays = told.round == state.fence.round and told.state is HangState.VERDICT and state.state is not JobState.SUCCEEDED
    return state if stays else dataclasses.replace(state, hang=None)


def concluded(state: State, now: float) -> tuple[State, Incident | None]:
    """Give the verdict that is due; the incident is returned where it asks for a restart."""
    inquiry, doubt = state.inquiry, state.hang
    if inquiry is None or doubt is None or state.state is not JobState.RUNNING:
        return state, None
    if now < inquiry.since + EVIDENCE_WITHIN and not _expected(state) <= inquiry.found.keys():
        return state, None
    ranks = _ranks(state, inquiry)
    found = find_deadlock(evidence_of(ranks))
    clock = Clock.LEARNED if state.watch.learned else Clock.DOWNTIME
    decision = decide(clock=clock, found=found, before=state.watch.found, plausible=borne_out(ranks))
    if decision is Decision.ACT:
        return _acted(state, doubt, inquiry, found, now)
    state = dataclasses.replace(state, inquiry=None)
    if decision is Decision.CONFIRM and found is not None:
        return state.with_watch(hang.to_confirm(state.watch, found, inquiry.since)), None
    if decision is Decision.NOTIFY:
        state = _notified(state, doubt, inquiry, now)
    return state.with_watch(hang.to_look_again(state.watch)), None


def _acted(state: State, doubt: Hang, inquiry: Inquiry, found: Deadlock | None, now: float) -> tuple[State, Incident | None]:
    """Give the verdict, and do what `hang_detection` asks for."""
    told = _incident(state, inquiry, _why(state), now, found)
    action = state.settings.hang_detection
    state = _given(_superseded(state, doubt, now), doubt, inquiry, told, HangState.VERDICT, now)
    state = telling.event(state.with_watch(dataclasses.replace(state.watch, settled=True)), "hang", told.reason, now)
    if action == LOG_ONLY:
        return state, None
    if action == NOTIFY:
        return telling.incident(state, dataclasses.replace(told, rung=Rung.NOTIFY)), None
    return state, told


def _notified(state: State, doubt: Hang, inquiry: Inquiry, now: float) -> State:
    """Tell of a silence without positive evidence: an incident, once, that restarts nothing."""
    told = dataclasses.replace(_incident(state, inquiry, f"{_learned(state)}; no positive evidence", now), answer=None)
    if doubt.incident is None:
        state = _given(state, doubt, inquiry, told, HangState.DOUBT, now)
        if state.settings.hang_detection != LOG_ONLY:
            state = telling.incident(state, dataclasses.replace(told, rung=Rung.NOTIFY))
    long = max(state.watch.quiet, state.watch.brisk) >= min(_WORTH_TELLING, _half(state))
    return _doubt_told(state, f"{told.reason}; {_later(state)}", now) if long else state


def _given(state: State, doubt: Hang, inquiry: Inquiry, told: Incident, level: HangState, now: float) -> State:
    given = dataclasses.replace(
        doubt,
        state=level,
        verdict_at=now if level is HangState.VERDICT else None,
        culprits=blame(_ranks(state, inquiry)),
        reason=told.reason,
        incident=None if state.settings.hang_detection == LOG_ONLY else told.id,
    )
    return dataclasses.replace(state, hang=given, inquiry=None)


def _superseded(state: State, doubt: Hang, now: float) -> State:
    """Return the state where an earlier notification of this silence ends: the time from now on is the verdict's."""
    ended = (i for i in state.incidents if i.id == doubt.incident and i.healed_at is None)
    closed = tuple(dataclasses.replace(i, healed_at=now) for i in ended)
    return dataclasses.replace(state, incidents=merge_incidents(state.incidents, closed)) if closed else state


def _ranks(state: State, inquiry: Inquiry) -> Ranks:
    """Return what was found, by rank of the world; nodes whose workers have all ended well are not asked."""
    waited_for, ranks = _expected(state), dict[int, RankSeen]()
    for member in state.world:
        if member.agent in inquiry.found:
            ranks.update((member.first_rank + seen.local_rank, seen) for seen in inquiry.found[member.agent].ranks)
        elif member.agent not in waited_for:
            ended = (RankSeen(local_rank=n, pid=0, note="it exited with code 0") for n in range(member.local_world_size))
            ranks.update((member.first_rank + seen.local_rank, seen) for seen in ended)
    return ranks


def _incident(state: State, inquiry: Inquiry, why: str, now: float, found: Deadlock | None = None) -> Incident:
    ranks = _ranks(state, inquiry)
    culprits = blame(ranks)
    culprit = _culprit(state, inquiry, ranks[culprits[0]], culprits[0], now) if culprits else None
    silence = _silence(state.watch)
    who = "" if culprit is None else f"; {_names(culprits)} on node {culprit.node} ({culprit.host}): {culprit.error}"
    return Incident(
        id=IncidentId(
            attempt=state.fence.attempt,
            round=state.fence.round,
            node=-1 if culprit is None else culprit.node,
            local_rank=-1 if culprit is None else culprit.local_rank,
            sequence=inquiry.number,
        ),
        cause=Cause.HANG,
        rung=Rung.RESTART_WORKERS,
        reason=f"{silence}{who or '; no rank differs from the others'}" + (f"; {found.reason}" if found is not None else ""),
        culprit=culprit,
        detected_at=inquiry.since if state.watch.found is None else state.watch.found_at,
        last_step=telling.last_step(state),
        kind=FaultKind.HANG,
        answer=Answer.RETRY_HERE,
        rule=f"hang_detection {state.settings.hang_detection}, {why}",
        evidence=groups(ranks, culprits),
        places=places_of(ranks, culprits, far=far(ranks), waits=waits),
    )


def _silence(watch: Watch) -> str:
    return f"no progress of any rank for {_span(max(watch.quiet, watch.brisk))}"


def _why(state: State) -> str:
    """Return why there is a verdict."""
    if not state.watch.learned:
        return f"hang_downtime {_span(state.settings.hang_downtime)}"
    return f"{_learned(state)}; positive evidence"


def _learned(state: State) -> str:
    known = state.watch.bound
    phase = "" if known.phase is None else known.phase.value
    return f"learned: {phase} usually takes {_span(known.usual)}, limit {_span(known.seconds)}"


def _later(state: State) -> str:
    """Return what `hang_downtime` brings."""
    action = "restart of the workers" if state.settings.hang_detection == RECOVER else "the hang is reported"
    return f"{action} at hang_downtime {_span(state.settings.hang_downtime)}"


def _culprit(state: State, inquiry: Inquiry, seen: RankSeen, rank: int, now: float) -> Culprit:
    member = next(m for m in state.world if m.first_rank <= rank < m.first_rank + m.local_world_size)
    evidence = inquiry.found.get(member.agent)
    return Culprit(
        node=member.node,
        incarnation=member.incarnation,
        host=member.host,
        rank=rank,
        local_rank=seen.local_rank,
        pid=seen.pid,
        error=place(seen),
        log_path="" if evidence is None else evidence.path,
        at=now,
        kind=FaultKind.HANG,
    )


def _names(ranks: tuple[int, ...]) -> str:
    named = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}, the first"


def _number(state: State) -> int:
    """Return the number of the next verdict of the round: an incident of the round has it in its id, and none has 0."""
    mine = (state.fence.attempt, state.fence.round)
    hangs = (i.id for i in state.incidents if i.cause is Cause.HANG)
    return 1 + max((known.sequence for known in hangs if (known.attempt, known.round) == mine), default=0)


def _span(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min" + (f" {rest} s" if rest else "")
