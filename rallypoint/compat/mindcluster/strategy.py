"""Which recovery strategy answers a fault, as MindCluster resolves it. Pure.

Two sets decide. What is *configured* are words of the annotation `recover-strategy`, in any order. What is *reported* is what
the processes say they can still do for this fault. The priority is fixed, and the first strategy of this list that is possible
is taken; `exit` always is:

    retry > recover-in-place > recover > elastic-training > dump > exit

A failure leads further down and never back up. One thing is not as one would expect: where every fault may be retried, retry is
configured and the processes cannot, the answer is dump or exit at once; recover is not tried.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

__all__ = [
    "REPORT_TIMEOUT",
    "Ability",
    "Choice",
    "Failure",
    "Fault",
    "FaultType",
    "Health",
    "Situation",
    "Strategy",
    "after_failure",
    "as_ordinary",
    "resolve",
]

#: Seconds that processes have to say what they can do, or how it went; then recovery goes on without them (`Failure.SILENCE`).
REPORT_TIMEOUT = 900.0

_Word = TypeVar("_Word", bound=enum.Enum)


class Strategy(str, enum.Enum):
    """The words of the annotation `recover-strategy`, in their fixed priority: the first that is possible is taken."""

    RETRY = "retry"  #: nobody restarts: the step is run again
    RECOVER_IN_PLACE = "recover-in-place"  #: the broken process restarts, its pod stays
    RECOVER = "recover"  #: the broken pod is replaced, the other processes live
    ELASTIC_TRAINING = "elastic-training"  #: the world shrinks around the broken pod
    DUMP = "dump"  #: a last checkpoint, then exit
    EXIT = "exit"  #: the faulty pods end, all others restart their workers


class Ability(str, enum.Enum):
    """What processes report that they can do for a fault."""

    RETRY = "retry"
    RECOVER = "recover"  #: in place as well
    DOWNGRADE = "downgrade"  #: elastic-training: go on with fewer
    UPGRADE = "upgrade"  #: elastic-training: take newcomers in again
    DUMP = "dump"
    EXIT = "exit"


class FaultType(str, enum.Enum):
    """The class of a fault, as it is announced with its rank."""

    MEMORY = "0"  #: an uncorrectable error of device memory; may be retried
    ORDINARY = "1"  #: anything else
    NETWORK = "2"  #: a collective or its link failed; may be retried


class Health(str, enum.Enum):
    """How the job as a whole is said to be."""

    HEALTHY = "healthy"
    SUB_HEALTHY = "sub-healthy"
    UNHEALTHY = "unhealthy"


class Failure(enum.Enum):
    """How a strategy failed."""

    REPAIR = enum.auto()  #: it was tried and did not work; training's own state is no base for another try in the processes
    RECOVERABLE = enum.auto()  #: code 405: retry could not clean up, but its state is fine: the fault becomes an ordinary one
    CLIENT = enum.auto()  #: code 499: not even a dump can be had from these processes
    SCHEDULE = enum.auto()  #: no replacement ran within `wait_reschedule_timeout`
    SILENCE = enum.auto()  #: nobody reported within `REPORT_TIMEOUT`

    @classmethod
    def of_code(cls, code: int) -> Failure:
        """Return what a reported code means; 0 (success) and 201 (ranks to isolate before a shrink) are no failures."""
        if code in (0, 201):
            raise ValueError(f"code: {code} is not allowed; expected the exit code of a failure (0 and 201 are not failures)")
        return {405: cls.RECOVERABLE, 499: cls.CLIENT}.get(code, cls.REPAIR)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that stands: its class and the rank that it hit."""

    type: FaultType
    rank: int


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What else decides.

    Attributes:
        in_place: some faulty pod may stay and restart its process alone (`inplace.judge`).
        master_faulty: the pod of rank 0 is faulty.
        rescheduling: fault-scheduling is `grace` or `force`, or pod-rescheduling is on: the lost pod may come back.
        waited: seconds since the pod was lost; `elastic_wait` is how long elastic-training waits for it.
        returned: every lost pod runs again.
        health: of the job, which is unhealthy while a fault stands; `grace_exit`: a sub-healthy job is to end, too.
    """

    in_place: bool = False
    master_faulty: bool = False
    rescheduling: bool = False
    waited: float = 0.0
    elastic_wait: float = 20.0
    returned: bool = False
    health: Health = Health.UNHEALTHY
    grace_exit: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The strategy that answers.

    Attributes:
        strategy: what is done.
        wait: seconds that the lost pod still has to come back; ask again then. 0 acts now.
        at_once: save and exit without first stopping everybody and asking what they can do.
        job_level: the whole job is rescheduled instead, because the pod of rank 0 would have to be replaced.
        pause: process-level recovery is switched off (`process-recover-enable=pause`) until the job runs again, so that the
            scheduler may go up to the whole job.
        reason: why, in one sentence.
    """

    strategy: Strategy
    wait: float = 0.0
    at_once: bool = False
    job_level: bool = False
    pause: bool = False
    reason: str


def resolve(
    configured: Iterable[Strategy | str],
    reported: Iterable[Ability | str] | None,
    faults: Iterable[Fault],
    situation: Situation = Situation(),
) -> Choice:
    """Choose the first answer to `faults`.

    `reported` None means that nobody has been asked yet. Then the answer is a dump at once or, for everything that needs the
    processes' word, what holds when they never give it: exit, with a pause. Raises `ValueError` for a word that is none.
    """
    wanted, faults = _words(configured, Strategy, "recover-strategy"), tuple(faults)
    if reported is None:
        return _unasked(wanted, situation)
    able = _words(reported, Ability, "reported")
    if not faults:
        raise ValueError("faults: is empty; expected at least one fault")
    if as_ordinary(faults, supported=Strategy.RETRY in wanted):
        return _first_possible(wanted, able, situation)
    if Ability.RETRY in able:
        return Choice(strategy=Strategy.RETRY, reason=f"all faults are of type {faults[0].type.value}, which may be retried")
    return _last(wanted, able, "retry was selected, but the training processes do not support retry")


def _unasked(wanted: frozenset[Strategy], situation: Situation) -> Choice:
    ill = situation.health is Health.UNHEALTHY or (situation.health is Health.SUB_HEALTHY and situation.grace_exit)
    best = min(wanted, key=_priority, default=Strategy.EXIT)
    if best is Strategy.DUMP and ill:
        reason = f"dump is the best configured strategy, and the job is {situation.health.value}"
        return Choice(strategy=Strategy.DUMP, at_once=True, reason=reason)
    return Choice(
        strategy=Strategy.EXIT, pause=True, reason="the training processes have not reported which strategies they support"
    )


def as_ordinary(faults: Iterable[Fault], *, supported: bool = True, retried: bool = False) -> bool:
    """Return whether the faults count as ordinary ones.

    They do when one of them is, when two types are mixed, when retry is not `supported`, and when the job was just `retried`.
    """
    types = {fault.type for fault in faults}
    return retried or not supported or len(types) > 1 or FaultType.ORDINARY in types


def after_failure(
    configured: Iterable[Strategy | str],
    reported: Iterable[Ability | str],
    failed: Strategy,
    failure: Failure = Failure.REPAIR,
    situation: Situation = Situation(),
) -> Choice:
    """Choose what follows when `failed` did not work; `ELASTIC_TRAINING` stands for both its directions. Never back up."""
    wanted = _words(configured, Strategy, "recover-strategy")
    able = _words(reported, Ability, "reported")
    if failure is Failure.SILENCE:
        return Choice(strategy=Strategy.EXIT, pause=True, reason=f"the result of {failed.value} is unknown")
    if failed is Strategy.RETRY:
        return _first_possible(wanted, _left_after_retry(able, failure), situation)
    if failure is Failure.SCHEDULE:
        return _unscheduled(wanted, able, failed, situation)
    if failed is Strategy.RECOVER_IN_PLACE:
        return _from_recover(wanted, able, situation)
    if failed in (Strategy.DUMP, Strategy.EXIT):
        return Choice(strategy=Strategy.EXIT, pause=failed is Strategy.EXIT, reason=f"{failed.value} has ended")
    return _last(wanted, able, f"{failed.value} failed")


def _left_after_retry(able: frozenset[Ability], failure: Failure) -> frozenset[Ability]:
    if failure is Failure.RECOVERABLE:
        return able
    spoilt = {Ability.RECOVER, Ability.DUMP} if failure is Failure.CLIENT else {Ability.RECOVER}
    return able - spoilt


def _unscheduled(wanted: frozenset[Strategy], able: frozenset[Ability], failed: Strategy, situation: Situation) -> Choice:
    # The wait for the pod is over already: elastic-training need not wait once more.
    shrinks = failed in (Strategy.RECOVER_IN_PLACE, Strategy.RECOVER) and _may_shrink(wanted, able, situation)
    reason = f"no replacement was ready in time for {failed.value}"
    if shrinks:
        return Choice(strategy=Strategy.ELASTIC_TRAINING, reason=reason)
    return Choice(strategy=Strategy.EXIT, pause=True, reason=reason)


def _first_possible(wanted: frozenset[Strategy], able: frozenset[Ability], situation: Situation) -> Choice:
    if Strategy.RECOVER_IN_PLACE in wanted and Ability.RECOVER in able and situation.in_place:
        return Choice(strategy=Strategy.RECOVER_IN_PLACE, reason="the faulty pod can stay and restart only its process")
    return _from_recover(wanted, able, situation)


def _from_recover(wanted: frozenset[Strategy], able: frozenset[Ability], situation: Situation) -> Choice:
    if Strategy.RECOVER in wanted and Ability.RECOVER in able:
        if situation.master_faulty:
            reason = "the pod of rank 0 would have to be replaced, so the whole job is rescheduled"
            return Choice(strategy=Strategy.RECOVER, job_level=True, reason=reason)
        return Choice(strategy=Strategy.RECOVER, reason="the faulty pods can be replaced while the other pods wait")
    if _may_shrink(wanted, able, situation) and not (situation.rescheduling and situation.returned):
        wait = max(0.0, situation.elastic_wait - situation.waited) if situation.rescheduling else 0.0
        reason = "the lost pod can still come back" if wait else "the job can shrink to the remaining pods"
        return Choice(strategy=Strategy.ELASTIC_TRAINING, wait=wait, reason=reason)
    return _last(wanted, able, "no other configured strategy is possible")


def _may_shrink(wanted: frozenset[Strategy], able: frozenset[Ability], situation: Situation) -> bool:
    return Strategy.ELASTIC_TRAINING in wanted and Ability.DOWNGRADE in able and not situation.master_faulty


def _last(wanted: frozenset[Strategy], able: frozenset[Ability], why: str) -> Choice:
    if Strategy.DUMP in wanted and Ability.DUMP in able:
        return Choice(strategy=Strategy.DUMP, reason=f"{why}; a last checkpoint can be saved")
    return Choice(strategy=Strategy.EXIT, reason=why)


def _priority(strategy: Strategy) -> int:
    return list(Strategy).index(strategy)


def _words(words: Iterable[_Word | str], kind: type[_Word], name: str) -> frozenset[_Word]:
    if isinstance(words, str):
        words = [word for word in words.split(",") if word.strip()]
    found = set()
    for word in words:
        text = word.strip() if isinstance(word, str) and not isinstance(word, kind) else word
        try:
            found.add(kind(text))
        except ValueError:
            allowed = ", ".join(str(known.value) for known in kind)
            raise ValueError(f"{name}: {word!r} is not allowed; expected one of {allowed}") from None
    return frozenset(found)
