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
import re

from rallypoint.capabilities.hang import published_durations
from rallypoint.capabilities.hang import watch as hang
from rallypoint.capabilities.hang.blame import Ranks, blame, far, waits
from rallypoint.capabilities.hang.deadlock import Clock, Deadlock, Decision, decide, evidence_of, find_deadlock
from rallypoint.capabilities.hang.description import ended, groups, place
from rallypoint.capabilities.hang.description import places as places_of
from rallypoint.capabilities.hang.state import HangStep, Inquiry, State
from rallypoint.capabilities.hang.watch import Watch
from rallypoint.capabilities.hang.wire import ReportSection, StatusSection
from rallypoint.wire.hang import Hang, HangState, RankSeen
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, IncidentId, Rung
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["BUSY", "EVIDENCE_WITHIN", "LOG_ONLY", "NOTIFY", "RECOVER", "concluded", "heard", "looks_hung", "restored", "tidied"]

#: Seconds for which a verdict waits for what the agents find.
EVIDENCE_WITHIN = 5.0

#: The values of `hang_detection`.
LOG_ONLY, NOTIFY, RECOVER = 0, 1, 2

#: Seconds of silence after which a doubt is a line of the story, where half of `hang_downtime` is not shorter. An evaluation or
#: a download that takes longer than the steps before it is none.
_WORTH_TELLING = 60.0

#: Number of CPU cores above which a rank counts as computing.
BUSY = 0.5

#: A collective in the form of torch's flight recorder, with its number within its group.
_NUMBER = re.compile(r"^\S+ (?P<number>#\d+) of group (?P<group>[^\s,]+)")


def restored(state: State, published: JobStatus, now: float) -> State:
    """Return the state of a coordinator that takes over: a doubt or a verdict stays until a rank shows a sign of life."""
    told, round_ = StatusSection.of(published), published.fence.round
    mine = (event.kind for event in reversed(published.events) if event.round == round_)
    silent = next((kind for kind in mine if kind.startswith("hang")), "hang-over") != "hang-over"
    state = dataclasses.replace(state, lively_at=min(told.lively_at, now), lively_in=round_, told_in=round_ if silent else 0)
    hang = told.hang
    if hang is None or hang.round != round_:
        return state
    watch = Watch(
        round=hang.round,
        begun=True,
        quiet_since=hang.quiet_since,
        doubt_at=hang.since,
        verdict_at=hang.verdict_at,
        settled=hang.state is HangState.VERDICT,
    )
    return dataclasses.replace(state, watch=dataclasses.replace(watch, counted_at=now), hang=hang)


# --- What is heard ---------------------------------------------------------------------------------------------------------


def heard(state: HangStep, before: AgentReport | None, report: AgentReport, now: float) -> HangStep:
    """Return the step after a report of an agent; `before` is the previous report of the same agent."""
    view, round_ = state.view, state.view.fence.round
    if view.state is not JobState.RUNNING or report.round != round_ or report.state is not AgentState.RUNNING:
        return state
    if report.agent not in view.places:
        return state
    sign = hang.sign_of(before, report)
    if sign.life:
        # The first report to a new coordinator tells of life that may be long ago.
        lively_at = now - (sign.age or 0.0)
        known = state.own.lively_at if state.own.lively_in == round_ else 0.0
        state = state.having(lively_at=max(known, lively_at), lively_in=round_)
    if state.settings.hang_downtime <= 0:
        return state
    watch = state.own.watch if state.own.watch.round == round_ else Watch.fresh(round_, now)
    state = published_durations.renewed(state, now)
    # Where there is life nobody else has to be heard, and most reports tell of life.
    expected = frozenset() if sign.life else _expected(state)
    judged = hang.judge(watch, sign, expected, state.settings.silence, now, lambda: published_durations.silence_limit(state))
    state = _told(state.having(watch=judged), now)
    return _found(state, report)


def _expected(state: HangStep) -> frozenset[str]:
    """Return the agents of the world whose workers have not all ended well."""
    round_ = state.view.fence.round
    done = {r.agent for _, r in state.view.members() if r.state is AgentState.DONE and r.round == round_}
    return frozenset(member.agent for member in state.view.world) - done


def _told(state: HangStep, now: float) -> HangStep:
    """Tell what is thought of the world now, where that is something else than before."""
    watch, known = state.own.watch, state.own.hang
    if watch.state is None:
        return state if known is None else _over(state, known, now)
    if known is None and watch.doubt_at is not None:
        doubt = Hang(round=watch.round, state=HangState.DOUBT, quiet_since=watch.quiet_since, since=now)
        known = dataclasses.replace(doubt, reason=_silence(watch))
        state = state.having(hang=known)
        # By the short clock it is a line of the story only when the agents have looked into their workers.
        if watch.quiet >= _half(state) or not watch.begun:
            state = _doubt_told(state, known.reason)
    if watch.state is HangState.VERDICT and state.own.inquiry is None and not watch.settled:
        state = state.having(inquiry=Inquiry(number=_number(state), since=now))
    return state


def _doubt_told(state: HangStep, reason: str) -> HangStep:
    """Return the state with a doubt in its story, once in a silence."""
    return state if _is_told(state) else state.event("hang-doubt", reason)


def _is_told(state: HangStep) -> bool:
    """Return whether the events have the present silence."""
    return state.own.told_in == state.view.fence.round


def _half(state: HangStep) -> float:
    return state.settings.hang_downtime / 2


def _over(state: HangStep, known: Hang, now: float) -> HangStep:
    """Take a doubt or a verdict back: somebody showed a sign of life."""
    state = state.having(hang=None, inquiry=None).healed(known.incident)
    if not _is_told(state):
        return state
    quiet = _span(max(0.0, now - known.quiet_since))
    return state.event("hang-over", f"training continues after {quiet} without progress")


def _found(state: HangStep, report: AgentReport) -> HangStep:
    """Keep what an agent has found for the inquiry that runs."""
    inquiry, evidence = state.own.inquiry, ReportSection.of(report).evidence
    if inquiry is None or evidence is None or (evidence.round, evidence.number) != (report.round, inquiry.number):
        return state
    return state.having(inquiry=dataclasses.replace(inquiry, found={**inquiry.found, report.agent: evidence}))


# --- What follows ----------------------------------------------------------------------------------------------------------


def tidied(state: HangStep, now: float) -> HangStep:
    """Return the step without the data of a round that is over; a verdict stays until the next round runs."""
    view, round_ = state.view, state.view.fence.round
    state = published_durations.carried_over(state)
    if state.own.lively_in != round_:
        state = state.having(lively_at=now, lively_in=round_)
    if state.own.inquiry is not None and view.state is not JobState.RUNNING:
        state = state.having(inquiry=None)
    told = state.own.hang
    if told is None or (told.round == round_ and view.state is JobState.RUNNING):
        return state
    stays = told.round == round_ and told.state is HangState.VERDICT and view.state is not JobState.SUCCEEDED
    return state if stays else state.having(hang=None)


def concluded(state: HangStep, now: float) -> tuple[HangStep, Incident | None]:
    """Give the verdict that is due; the incident is returned where it asks for a restart."""
    inquiry, doubt = state.own.inquiry, state.own.hang
    if inquiry is None or doubt is None or state.view.state is not JobState.RUNNING:
        return state, None
    if now < inquiry.since + EVIDENCE_WITHIN and not _expected(state) <= inquiry.found.keys():
        return state, None
    ranks = _ranks(state, inquiry)
    found = find_deadlock(evidence_of(ranks))
    clock = Clock.LEARNED if state.own.watch.learned else Clock.DOWNTIME
    decision = decide(clock=clock, found=found, before=state.own.watch.found, plausible=looks_hung(ranks))
    if decision is Decision.ACT:
        return _acted(state, doubt, inquiry, found, now)
    state = state.having(inquiry=None)
    if decision is Decision.CONFIRM and found is not None:
        return state.having(watch=hang.to_confirm(state.own.watch, found, inquiry.since)), None
    if decision is Decision.NOTIFY:
        state = _notified(state, doubt, inquiry, now)
    return state.having(watch=hang.to_look_again(state.own.watch)), None


def _acted(
    state: HangStep, doubt: Hang, inquiry: Inquiry, found: Deadlock | None, now: float
) -> tuple[HangStep, Incident | None]:
    """Give the verdict, and do what `hang_detection` asks for."""
    told = _incident(state, inquiry, _why(state), now, found)
    action = state.settings.hang_detection
    state = _given(state.healed(doubt.incident), doubt, inquiry, told, HangState.VERDICT, now)
    state = state.having(watch=dataclasses.replace(state.own.watch, settled=True)).event("hang", told.reason)
    if action == LOG_ONLY:
        return state, None
    if action == NOTIFY:
        return state.incident(dataclasses.replace(told, rung=Rung.NOTIFY)), None
    return state, told


def _notified(state: HangStep, doubt: Hang, inquiry: Inquiry, now: float) -> HangStep:
    """Tell of a silence without positive evidence: an incident, once, that restarts nothing."""
    told = dataclasses.replace(_incident(state, inquiry, f"{_learned(state)}; no positive evidence", now), answer=None)
    if doubt.incident is None:
        state = _given(state, doubt, inquiry, told, HangState.DOUBT, now)
        if state.settings.hang_detection != LOG_ONLY:
            state = state.incident(dataclasses.replace(told, rung=Rung.NOTIFY))
    long = max(state.own.watch.quiet, state.own.watch.brisk) >= min(_WORTH_TELLING, _half(state))
    return _doubt_told(state, f"{told.reason}; {_later(state)}") if long else state


def _given(state: HangStep, doubt: Hang, inquiry: Inquiry, told: Incident, level: HangState, now: float) -> HangStep:
    given = dataclasses.replace(
        doubt,
        state=level,
        verdict_at=now if level is HangState.VERDICT else None,
        culprits=blame(_ranks(state, inquiry)),
        reason=told.reason,
        incident=None if state.settings.hang_detection == LOG_ONLY else told.id,
    )
    return state.having(hang=given, inquiry=None)


def _ranks(state: HangStep, inquiry: Inquiry) -> Ranks:
    """Return what was found, by rank of the world; nodes whose workers have all ended well are not asked."""
    waited_for, ranks = _expected(state), dict[int, RankSeen]()
    for member in state.view.world:
        if member.agent in inquiry.found:
            ranks.update((member.first_rank + seen.local_rank, seen) for seen in inquiry.found[member.agent].ranks)
        elif member.agent not in waited_for:
            ended = (RankSeen(local_rank=n, pid=0, note="exited with code 0") for n in range(member.local_world_size))
            ranks.update((member.first_rank + seen.local_rank, seen) for seen in ended)
    return ranks


def _incident(state: HangStep, inquiry: Inquiry, why: str, now: float, found: Deadlock | None = None) -> Incident:
    ranks = _ranks(state, inquiry)
    culprits = blame(ranks)
    culprit = _culprit(state, inquiry, ranks[culprits[0]], culprits[0], now) if culprits else None
    silence = _silence(state.own.watch)
    who = "" if culprit is None else f"; {_names(culprits)} on node {culprit.node} ({culprit.host}): {culprit.error}"
    return Incident(
        id=IncidentId(
            attempt=state.view.fence.attempt,
            round=state.view.fence.round,
            node=-1 if culprit is None else culprit.node,
            local_rank=-1 if culprit is None else culprit.local_rank,
            sequence=inquiry.number,
        ),
        cause=Cause.HANG,
        rung=Rung.RESTART_WORKERS,
        reason=f"{silence}{who or '; no single rank causes it, because all ranks are in the same state'}"
        + (f"; {found.reason}" if found is not None else ""),
        culprit=culprit,
        detected_at=inquiry.since if state.own.watch.found is None else state.own.watch.found_at,
        kind=FaultKind.HANG,
        answer=Answer.RETRY_HERE,
        rule=f"hang_detection {state.settings.hang_detection}, {why}",
        evidence=groups(ranks, culprits),
        places=places_of(ranks, culprits, far=far(ranks), waits=waits),
    )


def _silence(watch: Watch) -> str:
    return f"no progress of any rank for {_span(max(watch.quiet, watch.brisk))}"


def _why(state: HangStep) -> str:
    """Return why there is a verdict."""
    if not state.own.watch.learned:
        return f"hang_downtime {_span(state.settings.hang_downtime)}"
    return f"{_learned(state)}; positive evidence"


def _learned(state: HangStep) -> str:
    known = state.own.watch.bound
    phase = "" if known.phase is None else known.phase.value
    return f"{phase} usually takes {_span(known.usual)}; limit learned from this: {_span(known.seconds)}"


def _later(state: HangStep) -> str:
    """Return what `hang_downtime` brings."""
    action = "restarted" if state.settings.hang_detection == RECOVER else "reported as hanging"
    return f"the workers are {action} after hang_downtime={_span(state.settings.hang_downtime)} without progress"


def _culprit(state: HangStep, inquiry: Inquiry, seen: RankSeen, rank: int, now: float) -> Culprit:
    member = next(m for m in state.view.world if m.first_rank <= rank < m.first_rank + m.local_world_size)
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
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}; the first is"


def _number(state: HangStep) -> int:
    """Return the number of the next verdict of the round: an incident of the round has it in its id, and none has 0."""
    mine = (state.view.fence.attempt, state.view.fence.round)
    hangs = (i.id for i in state.view.incidents if i.cause is Cause.HANG)
    return 1 + max((known.sequence for known in hangs if (known.attempt, known.round) == mine), default=0)


def _span(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min" + (f" {rest} s" if rest else "")


def looks_hung(ranks: Ranks) -> bool:
    """Return whether the ranks seem to hang; False without evidence of a living rank.

    In a hang, at least one rank waits: for another rank, a lock or a disk. If all ranks compute, the job may do work that it
    does not report. Then a hang is plausible only if some ranks wait in a collective that others have not called: a rank that
    waits on a GPU also uses its CPU.
    """
    living = [seen for seen in ranks.values() if not ended(seen)]
    if not living:
        return False
    if any(seen.device for seen in living):
        return True
    if not all(map(_computes, living)):
        return True
    waiting = sum(map(waits, living))
    return 0 < waiting < len(living) or _apart(living)


def _apart(living: list[RankSeen]) -> bool:
    """Return whether the last collectives of the ranks, in one group, have different numbers: then some ranks wait."""
    told = [match for seen in living if (match := _NUMBER.match(seen.collective))]
    return len(told) == len(living) and len({m["group"] for m in told}) == 1 and len({m["number"] for m in told}) > 1


def _computes(seen: RankSeen) -> bool:
    return seen.state not in ("T", "t") and (seen.cpu >= BUSY or seen.state == "R")
