"""The verdict on what an agent tells of its round: by the job's extension, the user's rules, exit codes, the table. Pure.

One agent may tell of many workers. What a rule, a terminal code or the extension says about any of them that broke by itself
is done. The list of retryable codes, and the table for want of anything else, judge the culprit of the whole round alone: its
peers died of it, with codes that mean nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rallypoint.agent.culprit import culprit_first, is_collateral
from rallypoint.agent.rendezvous.peers import Peer
from rallypoint.agent.rendezvous.settings import Settings
from rallypoint.supervision import verdicts
from rallypoint.supervision.verdicts import Judgement
from rallypoint.wire.failover import Failover
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind

__all__ = ["advised", "on_culprit", "on_peer"]

#: What an extension's answers mean in the words of verdicts. A new start of the whole job is the end of this attempt.
_ADVICE = {
    Failover.NODE: (Answer.RETRY_ELSEWHERE, Cause.NODE, ""),
    Failover.GLOBAL: (Answer.RETRY_HERE, Cause.JOB, "GlobalFailover"),
    Failover.ABORT: (Answer.FAIL_NOW, Cause.JOB, "FailNow"),
}


def advised(settings: Settings, peer: Peer) -> tuple[Culprit | None, Judgement] | None:
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


def on_peer(settings: Settings, peer: Peer) -> tuple[Culprit | None, Judgement] | None:
    """Return what must be done for one of an agent's workers, and which; None when they may all be restarted."""
    found = advised(settings, peer)
    if found is not None:
        return found
    own = [failure for failure in culprit_first(peer.report.failures) if not is_collateral(failure)]
    judged = [(failure, _judge(settings, peer, failure, retryable=())) for failure in own]
    fatal = next(((f, j) for f, j in judged if j.answer is Answer.FAIL_NOW), None)
    if fatal is not None:
        return fatal
    return next(((f, j) for f, j in judged if j.answer is Answer.RETRY_ELSEWHERE and not _impossible(settings, j)), None)


def on_culprit(settings: Settings, failed: Sequence[Peer]) -> tuple[Peer, Culprit, Judgement] | None:
    """Return the verdict on the worker that broke the round, and whose it is; None when nobody tells of a worker."""
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
