"""What MindCluster's scheduler does about a fault (profile `mindcluster`): which pods are deleted, how, and what it costs.

Pure, like `reconcile`: the settings are the job's labels and annotations, `now` is the job's own clock, and the caller keeps
`Decision.pending` and the count of charged restarts for the next call. The rules, the first that matches:

1. `recover_policy_path` is `pod`: the faulty pods alone, and never more;
2. the pod of rank 0 is faulty: all pods;
3. process-level recovery and graceful fault tolerance are both on: all pods, because neither may act;
4. `pod-rescheduling` is on and a replaced pod was found pending at fewer than `pending_rounds` checks: the faulty pods alone;
5. `process-recover-enable` is `on`: the faulty pods alone, and the checks do not count;
6. otherwise (also `pause` without pod-rescheduling): all pods.

Before them stand `fault-scheduling` (nothing is done unless it is `grace` or `force`) and, for a container that ended by
itself, `fault-retry-times`. A hardware fault costs none of that budget; where both happen at once, hardware is the reason.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from rallypoint.compat.mindcluster.strategy import Strategy
from rallypoint.wire.plan import Scheduling

__all__ = [
    "NOT_REGISTERED",
    "Admission",
    "Decision",
    "Ending",
    "Fault",
    "FaultReason",
    "Pending",
    "Rule",
    "Scope",
    "State",
    "admission",
    "decide",
    "may_replace",
    "replaces_alone",
    "reschedules_all",
    "strategies",
]

#: What a job is told that asks for process-level recovery while its label `process-recover-enable` is not `on`.
NOT_REGISTERED = 403

#: The slot whose pod holds rank 0.
_MASTER = 0

_ON, _GRACE, _FORCE = "on", "grace", "force"
_HANDLED = frozenset({_GRACE, _FORCE})

#: They need the time that a graceful deletion gives. The world may shrink, and a last checkpoint be saved, without.
_NEED_GRACE = frozenset({Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER})


class FaultReason(str, enum.Enum):
    """Why a pod is faulty, as the scheduler tells faults apart."""

    HARDWARE = "hardware"  #: its host or device was flagged; free
    LOST = "lost"  #: gone, and nobody saw how: to the scheduler a lost host, so free like hardware
    CONTAINER = "container"  #: a container ended by itself with an error; costs one of `fault_retry_times`


class Scope(str, enum.Enum):
    """What is deleted and scheduled anew."""

    NONE = "none"
    PODS = "pods"  #: `Decision.nodes` alone
    JOB = "job"  #: every pod of the job


class Rule(str, enum.Enum):
    """Which rule decided."""

    NO_FAULT = "no-fault"
    OFF = "fault-scheduling"  #: the label is neither `grace` nor `force`
    RETRY_TIMES = "fault-retry-times"  #: the budget for ended containers is spent, or was never given
    BACKOFF_LIMIT = "backoff-limit"  #: as many restarts as the job may have at all
    POLICY_PATH = "recover_policy_path"
    RANK_ZERO = "rank-0"
    GRACEFUL_TOLERANCE = "graceful-tolerance"
    POD_RESCHEDULING = "pod-rescheduling"
    PROCESS_RECOVER = "process-recover-enable"
    PENDING_ROUNDS = "pending-rounds"  #: a replaced pod was found pending too often
    JOB_RESCHEDULING = "job-rescheduling"  #: no label asks for less


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One faulty pod that nobody has answered yet."""

    node: int
    reason: FaultReason


@dataclass(frozen=True, kw_only=True)
class Pending:
    """How often replaced pods were found pending; `at` is the job's clock of the last check, None while none is counted."""

    checks: int = 0
    at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A pod that was asked to end and is not gone; `since` is the job's clock of the request."""

    node: int
    since: float


@dataclass(frozen=True, kw_only=True)
class State:
    """What happened before.

    Attributes:
        charged: restarts that cost one of `fault_retry_times` so far.
        restarts: restarts of any kind so far, for `backoff_limit`.
        replaced: nodes that were deleted alone (`Scope.PODS`), whose fresh pod does not run yet. After a restart of the whole
            job it is empty: nothing is left to upgrade to.
        pending: `Decision.pending` of the call before.
        ending: pods that were asked to end and are still there.
    """

    charged: int = 0
    restarts: int = 0
    replaced: frozenset[int] = frozenset()
    pending: Pending = Pending()
    ending: tuple[Ending, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the scheduler does now.

    Attributes:
        scope, nodes: what is deleted; `nodes` is in order, and empty unless `scope` is `PODS`.
        refused: pods with a fault that is left alone, in order; `rule` says why where nothing else is done.
        graceful: pods get their termination grace; false deletes at once.
        charge: this restart costs one of `fault_retry_times`.
        force: pods in `State.ending` whose time is over: they are deleted by force now.
        force_at: the job's clock after which (strictly) the next graceful deletion is forced, one that begins now included;
            None while none is under way.
        upgrade_at: the job's clock of the check that would extend the restart to the whole job, None while none would.
        look_at: the job's clock at which something may change by time alone, or None.
        pending: to be given back with the next call.
        rule, reason: which rule decided, and why in one sentence.
    """

    scope: Scope
    nodes: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    graceful: bool = True
    charge: bool = False
    force: tuple[int, ...] = ()
    force_at: float | None = None
    upgrade_at: float | None = None
    look_at: float | None = None
    pending: Pending = Pending()
    rule: Rule = Rule.NO_FAULT
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Whether process-level recovery may act at all.

    Attributes:
        allowed: it may; then `refused` are the strategies that may not all the same.
        code: what registration answers: 0, or `NOT_REGISTERED` where the label is not `on`.
        reason: why not, for people; "" when everything may act.
    """

    allowed: bool
    code: int = 0
    refused: frozenset[Strategy] = frozenset()
    reason: str = ""


def decide(
    settings: Scheduling,
    faults: Iterable[Fault],
    state: State,
    now: float,
    *,
    backoff_limit: int = 0,
    retry_limit: int | None = None,
) -> Decision:
    """Decide what is deleted at `now`, the job's own clock in seconds.

    Call it on every turn, with no faults, too: time alone upgrades a restart of pods and forces a deletion. Faults of pods that
    are already in `state.ending` are being answered and are passed over. `backoff_limit` bounds restarts of every kind;
    0 and less is no bound. `retry_limit` bounds those that cost something; None is no bound.
    """
    pending = _checked(settings, state, now)
    ending = {pod.node for pod in state.ending}
    fresh = tuple(fault for fault in faults if fault.node not in ending)
    refusal = _refusal(settings, fresh, state, backoff_limit, retry_limit) if fresh else None
    if fresh and refusal is None:
        return _timed(settings, state, _answer(settings, fresh, pending), now)
    # A fault that is left alone must not keep those from their upgrade that were answered before.
    decision = _go_on(settings, state.replaced, pending)
    if refusal is not None:
        nodes = tuple(sorted({fault.node for fault in fresh}))
        decision = dataclasses.replace(decision, refused=nodes)
        if decision.scope is Scope.NONE:
            decision = dataclasses.replace(decision, rule=refusal[0], reason=refusal[1])
    return _timed(settings, state, decision, now)


def _checked(settings: Scheduling, state: State, now: float) -> Pending:
    """Count one check where one is due: a gap between two turns, however long, saw the pods pending once."""
    if not state.replaced:
        return Pending()
    if not _counts(settings):
        return Pending(checks=state.pending.checks)
    if state.pending.at is None:
        return Pending(checks=state.pending.checks, at=now)
    if now < state.pending.at + settings.pending_interval:
        return state.pending
    return Pending(checks=min(state.pending.checks + 1, settings.pending_rounds), at=now)


def _counts(settings: Scheduling) -> bool:
    """Return whether checks count: only where they may lead from the faulty pods up to the whole job."""
    if settings.never_upgrade or settings.fault_scheduling not in _HANDLED:
        return False
    return settings.pod_rescheduling and settings.process_recover != _ON


def _refusal(
    settings: Scheduling, faults: tuple[Fault, ...], state: State, backoff_limit: int, retry_limit: int | None
) -> tuple[Rule, str] | None:
    """Return why new faults are left alone, or None when they are answered."""
    if settings.fault_scheduling not in _HANDLED:
        return Rule.OFF, f"fault-scheduling is {settings.fault_scheduling or 'not set'}; expected grace or force"
    if 0 < backoff_limit <= state.restarts:
        return Rule.BACKOFF_LIMIT, f"{state.restarts} restarts reach the backoff limit of {backoff_limit}"
    if _charges(faults) and state.charged >= settings.fault_retry_times:
        used = f"{state.charged} of {max(0, settings.fault_retry_times)} fault-retry-times are used"
        return Rule.RETRY_TIMES, f"a container exited, and {used}"
    if _charges(faults) and retry_limit is not None and state.charged >= retry_limit:
        return (
            Rule.BACKOFF_LIMIT,
            f"a container exited, and {state.charged} of {retry_limit} retries (retry_limit) are used",
        )
    return None


def _charges(faults: tuple[Fault, ...]) -> bool:
    # A hardware fault beside an ended container is the reason for both: that restart has to be made anyway.
    return all(fault.reason is FaultReason.CONTAINER for fault in faults)


def _answer(settings: Scheduling, faults: tuple[Fault, ...], pending: Pending) -> Decision:
    """Answer faults that nobody has answered yet."""
    nodes = frozenset(fault.node for fault in faults)
    scope, rule = _extent(settings, nodes, pending)
    return Decision(
        scope=scope,
        nodes=tuple(sorted(nodes)) if scope is Scope.PODS else (),
        graceful=settings.fault_scheduling == _GRACE,
        charge=_charges(faults),
        pending=pending if scope is Scope.PODS else Pending(),
        rule=rule,
        reason=_why(settings, scope, rule, nodes),
    )


def _go_on(settings: Scheduling, replaced: frozenset[int], pending: Pending) -> Decision:
    """Wait for the replaced pods, or extend their restart to the whole job."""
    if not replaced:
        return Decision(scope=Scope.NONE, reason="no pod is faulty")
    if settings.fault_scheduling not in _HANDLED:
        return Decision(scope=Scope.NONE, pending=pending, rule=Rule.OFF, reason="fault-scheduling was disabled")
    scope, rule = _extent(settings, replaced, pending)
    if scope is Scope.PODS:
        # They are deleted already; what is left is to wait for their successors.
        return Decision(scope=Scope.NONE, pending=pending, rule=rule, reason=f"{_pods(replaced)} replaced and not running yet")
    # The fault was paid for when its pods were deleted.
    graceful = settings.fault_scheduling == _GRACE
    return Decision(scope=Scope.JOB, graceful=graceful, rule=rule, reason=_why(settings, scope, rule, replaced))


def _extent(settings: Scheduling, nodes: frozenset[int], pending: Pending) -> tuple[Scope, Rule]:
    """Return how much a fault of `nodes` restarts: the first rule that matches."""
    if settings.never_upgrade:
        return Scope.PODS, Rule.POLICY_PATH
    if _MASTER in nodes:
        return Scope.JOB, Rule.RANK_ZERO
    if _tolerates(settings):
        return Scope.JOB, Rule.GRACEFUL_TOLERANCE
    if settings.pod_rescheduling and pending.checks < settings.pending_rounds:
        return Scope.PODS, Rule.POD_RESCHEDULING
    if settings.process_recover == _ON:
        return Scope.PODS, Rule.PROCESS_RECOVER
    return Scope.JOB, Rule.PENDING_ROUNDS if settings.pod_rescheduling else Rule.JOB_RESCHEDULING


def _tolerates(settings: Scheduling) -> bool:
    return settings.graceful_tolerance and settings.process_recover == _ON


def may_replace(settings: Scheduling) -> bool:
    """Return whether the scheduler replaces lost pods at all."""
    return settings.fault_scheduling in _HANDLED


def replaces_alone(settings: Scheduling, node: int) -> bool:
    """Return whether the end of a container of `node` leads to the replacement of that pod alone, while the budget lasts."""
    alone = settings.never_upgrade or (settings.pod_rescheduling and node != _MASTER)
    return may_replace(settings) and settings.fault_retry_times > 0 and alone


def reschedules_all(settings: Scheduling) -> bool:
    """Return whether a fault of a process reschedules the job, since both ways of tolerating it are in use at once."""
    return _tolerates(settings) and settings.fault_scheduling in _HANDLED


def _timed(settings: Scheduling, state: State, decision: Decision, now: float) -> Decision:
    """Add what time alone does: forced deletions and the next check."""
    over = {pod.node: pod.since + settings.grace_over_time for pod in state.ending}
    force = tuple(sorted(node for node, at in over.items() if settings.fault_scheduling == _FORCE or now > at))
    force_ats = [at for node, at in over.items() if node not in force]
    if decision.scope is not Scope.NONE and decision.graceful:
        force_ats.append(now + settings.grace_over_time)
    force_at = min(force_ats, default=None)
    pending, check_at, upgrade_at = decision.pending, None, None
    if pending.at is not None:
        check_at = pending.at + settings.pending_interval
        upgrade_at = pending.at + settings.pending_interval * (settings.pending_rounds - pending.checks)
    look_at = min((at for at in (force_at, check_at) if at is not None), default=None)
    return dataclasses.replace(decision, force=force, force_at=force_at, upgrade_at=upgrade_at, look_at=look_at)


def _pods(nodes: frozenset[int]) -> str:
    names = ", ".join(str(node) for node in sorted(nodes))
    return f"pod {names} is" if len(nodes) == 1 else f"pods {names} are"


def _why(settings: Scheduling, scope: Scope, rule: Rule, nodes: frozenset[int]) -> str:
    because = {
        Rule.POLICY_PATH: "huawei.com/recover_policy_path is pod: only faulty pods are replaced",
        Rule.RANK_ZERO: "the pod of rank 0 is among them",
        Rule.GRACEFUL_TOLERANCE: "process-level recovery and graceful fault tolerance are both enabled",
        Rule.POD_RESCHEDULING: "pod-rescheduling is enabled",
        Rule.PROCESS_RECOVER: "process-recover-enable is on",
        Rule.PENDING_ROUNDS: f"after {settings.pending_rounds} checks a replaced pod is still pending",
        Rule.JOB_RESCHEDULING: "no label limits the reset to a part of the job",
    }[rule]
    what = "all pods are" if scope is Scope.JOB else f"{_pods(nodes)}"
    trouble = "replaced and pending" if rule is Rule.PENDING_ROUNDS else "faulty"
    return f"{_pods(nodes)} {trouble}; {because}; {what} rescheduled"


def admission(settings: Scheduling) -> Admission:
    """Return whether process-level recovery may act: what a job is told that registers for it."""
    if settings.process_recover != _ON:
        reason = f"process-recover-enable is {settings.process_recover or 'not set'}; expected on"
        return Admission(allowed=False, code=NOT_REGISTERED, reason=reason)
    if settings.graceful_tolerance:
        return Admission(allowed=False, reason="graceful fault tolerance is also enabled, so the whole job is rescheduled")
    off = frozenset(map(Strategy, settings.switched_off))
    reasons = [f"environment variables of the job disable {', '.join(settings.switched_off)}"] if off else []
    if settings.fault_scheduling != _GRACE:
        told = f"fault-scheduling is {settings.fault_scheduling or 'not set'}; recovery of single processes requires grace"
        return Admission(allowed=True, refused=_NEED_GRACE | off, reason="; ".join([told, *reasons]))
    return Admission(allowed=True, refused=off, reason="; ".join(reasons))


def strategies(settings: Scheduling | None) -> tuple[Strategy, ...]:
    """Return what may be tried for a fault, the first of which that is possible is taken; `exit` always may.

    `settings` are a plan's; without any, in the other profiles, everything may be tried that the processes can do.
    """
    if settings is None:
        return tuple(Strategy)
    admitted = admission(settings)
    refused = admitted.refused if admitted.allowed else frozenset(Strategy)
    return tuple(
        word for word in Strategy if word is Strategy.EXIT or (word.value in settings.recover_strategy and word not in refused)
    )
