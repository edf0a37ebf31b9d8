"""A fault as it is told: who, where, how, which rung answered, and when it was healed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import PID, TIME, WHOLE
from rallypoint.wire.places import RankSpan

__all__ = [
    "DUMP_TIMEOUT",
    "FREE",
    "Answer",
    "Cause",
    "Culprit",
    "FaultKind",
    "Folded",
    "Incident",
    "IncidentId",
    "RankGroup",
    "Rung",
    "merge_incidents",
]


class Cause(str, enum.Enum):
    """What kind of thing broke; each kind that costs has a budget of its own."""

    PROCESS = "process"  #: a worker process ended badly
    NODE = "node"  #: an agent or a whole node was lost
    HANG = "hang"  #: nobody ended, nothing went on
    RENDEZVOUS = "rendezvous"  #: a round could not be formed in time
    COORDINATOR = "coordinator"  #: the coordinator was lost; nobody else noticed; free
    JOB = "job"  #: the attempt as a whole failed
    SCALE = "scale"  #: nodes joined or left on purpose; free
    PREEMPTION = "preemption"  #: somebody more important took the room; free
    EVACUATION = "evacuation"  #: a host was flagged as bad and left before it broke anything; free


#: Causes that no budget pays for.
FREE = frozenset({Cause.COORDINATOR, Cause.SCALE, Cause.PREEMPTION, Cause.EVACUATION})


class FaultKind(str, enum.Enum):
    """How a worker, a pod, a node or a job ended: the rows of the table of verdicts (supervision/verdicts.py)."""

    EXIT_CODE = "exit-code"  #: it ended with a code of its own
    SIGNAL = "signal"  #: a signal ended it, and nobody knows why
    OOM = "oom"  #: it needed more memory than it may have
    HARDWARE = "hardware"  #: it says itself that its accelerator or its host is broken
    APPLICATION_ERROR = "application-error"  #: an exception of the script that it recorded or printed
    EVICTED = "evicted"  #: its host was short of something
    PREEMPTED = "preempted"  #: a more important pod took its room
    FLAGGED = "flagged"  #: the host of the running node was flagged as bad
    DELETED = "deleted"  #: somebody deleted the pod from outside
    NODE_LOST = "node-lost"  #: gone, and nobody saw how
    HANG = "hang"  #: alive, and nothing goes on
    START_FAILED = "start-failed"  #: it cannot start: image, volume, secret, interpreter
    NO_PROGRESS = "no-progress"  #: attempts come and go without a newer step


class Answer(str, enum.Enum):
    """What a verdict asks for."""

    RETRY_HERE = "retry-here"  #: the same node may try again
    RETRY_ELSEWHERE = "retry-elsewhere"  #: another node must
    FAIL_NOW = "fail-now"  #: trying again cannot help: the job ends


#: Seconds in which a last checkpoint must be saved: as long as storage needs for a part of the state.
DUMP_TIMEOUT = 600.0


class Rung(str, enum.Enum):
    """The answer to a fault, cheapest first (docs/explanation/architecture.md, "The recovery ladder")."""

    NOTIFY = "notify"  #: it is told, and nothing is done about it; no budget pays
    RETRY = "retry"
    RECOVER_IN_PLACE = "recover-in-place"
    RESTART_WORKERS = "restart-workers"
    RECOVER = "recover"
    ELASTIC_TRAINING = "elastic-training"
    RESET = "reset"
    DUMP = "dump"
    EXIT = "exit"


@dataclass(frozen=True, order=True, kw_only=True)
class IncidentId:
    """Names one fault for ever, so that a budget is a count over a set and nothing is charged twice.

    `local_rank` is -1 when the whole node is meant, `node` is -1 when the whole job is.
    """

    limits: ClassVar = {"sequence": WHOLE}

    attempt: int
    round: int
    node: int = -1
    local_rank: int = -1
    sequence: int = 0


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The worker or node that broke first.

    Attributes:
        node: slot of the job; `host` is the machine it ran on.
        rank, local_rank: -1 when the whole node is meant.
        exit_code: the process's exit code; None when it was ended by a signal or nobody saw its end.
        signal: number of the signal that ended it, or None.
        error: its first error in one line, from torch's error file or else the last line of its log.
        log_tail: the last lines of its stderr (or stdout where stderr is empty), oldest first.
        log_path: where the whole log is, on `host`.
        at: seconds since the epoch on the clock of its own node.
        kind: what its end was, where who saw it knows more than code, signal and error tell.
        lives: a step of it raised, and its process went on.
    """

    limits: ClassVar = {"incarnation": WHOLE, "pid": PID}

    node: int = -1
    incarnation: int = 0
    host: str = ""
    rank: int = -1
    local_rank: int = -1
    pid: int = 0
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    log_tail: tuple[str, ...] = ()
    log_path: str = ""
    at: float = 0.0
    kind: FaultKind | None = None
    lives: bool = False


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """Ranks of a world that hangs and that stand at the same place.

    Attributes:
        ranks: the first of them, in order; `more` counts those that are not named.
        culprit: the others wait for them.
        step: the lowest that one of them reported, None where none did; `life` the fewest signs of life of one in this round.
        quiet: seconds since the last sign of life of the one that is silent for longest.
        cpu: cores that one of them used since then, on the average.
        state: in one word: running, sleeping, waiting for a disk, stopped, ended, unknown.
        frames: of the main thread, the innermost first; or, where there are none, why.
        native: the frames below the innermost of these, where py-spy could tell them.
        phase: what they were doing, as far as it is known: step, evaluation, checkpoint, ...
        collective: the last one that they have called, where torch's flight recorder could be asked.
        gpu: how busy one of their GPUs was, on the average, 0.0 to 1.0; 0.0 also where that is not known.
        device: the errors that the device of the first has reported, "" where there are none.
    """

    limits: ClassVar = {"step": WHOLE, "life": WHOLE}

    ranks: tuple[int, ...]
    more: int = 0
    culprit: bool = False
    step: int | None = None
    life: int = 0
    quiet: float = 0.0
    cpu: float = 0.0
    state: str = ""
    frames: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    phase: str = ""
    collective: str = ""
    gpu: float = 0.0
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One fault and what was done about it.

    Times are seconds since the epoch on the observer's clock (coordinator or supervisor), never compared across machines.
    `steps_lost` counts reported steps that had to be trained again; None while unknown or when the script reports none.
    `healed_at` is when a whole world ran again, or when a step told it better; `trained_at` is when a step was reported after
    the fault, or counted by the optimizer hook, None where no step is known.
    `kind`, `answer` and `rule` are the verdict: what it was, what it asks for, and by which rule; `clock` is the job's own
    clock when the record took it over, 0 where only the coordinator has told it so far. `refilled`: the budget that paid for it
    was refilled since, so that it counts no more. `evidence` is where each rank of a world stood that hangs, the culprit first,
    and `places` how far each had come.
    """

    limits: ClassVar = {
        "last_step": WHOLE,
        "resumed_step": WHOLE,
        "detected_at": TIME,
        "healed_at": TIME,
        "trained_at": TIME,
        "clock": TIME,
    }

    id: IncidentId
    cause: Cause
    rung: Rung
    reason: str
    culprit: Culprit | None = None
    detected_at: float = 0.0
    healed_at: float | None = None
    trained_at: float | None = None
    last_step: int | None = None
    resumed_step: int | None = None
    kind: FaultKind | None = None
    answer: Answer | None = None
    rule: str = ""
    clock: float = 0.0
    refilled: bool = False
    evidence: tuple[RankGroup, ...] = ()
    places: tuple[RankSpan, ...] = ()

    @property
    def steps_lost(self) -> int | None:
        """Steps that were trained twice because of this fault."""
        if self.last_step is None or self.resumed_step is None:
            return None
        return max(0, self.last_step - self.resumed_step)

    @property
    def recovered_at(self) -> float | None:
        """When training went on, as exactly as that is known; None while it has not."""
        return self.healed_at if self.trained_at is None else self.trained_at


@dataclass(frozen=True, kw_only=True)
class Folded:
    """Incidents that were folded into a count, so that a record stays small: all of one cause, attempt and node.

    `attempt` is 0 for those of many old attempts, `node` -1 for a cause that no budget counts by node. `first_at` and `last_at`
    are when the first and the last were detected; `last_clock` is the job's clock of the last. `round` and `sequence` are the
    highest of their ids (`sequence` of those of no round): what is told again and is not higher was counted already. `refilled`
    of them count no more: the budget that paid for them was refilled.
    """

    limits: ClassVar = {
        "count": WHOLE,
        "sequence": WHOLE,
        "refilled": WHOLE,
        "first_at": TIME,
        "last_at": TIME,
        "last_clock": TIME,
    }

    cause: Cause
    attempt: int
    node: int = -1
    count: int
    first_at: float
    last_at: float
    last_clock: float = 0.0
    round: int = 0
    sequence: int = -1
    refilled: int = 0


def merge_incidents(old: Iterable[Incident], new: Iterable[Incident]) -> tuple[Incident, ...]:
    """Return the union by id, ordered by id; two tellings of one fault are joined, nothing that either knew is lost."""
    merged = {incident.id: incident for incident in old}
    for incident in new:
        known = merged.get(incident.id)
        merged[incident.id] = incident if known is None else _join(known, incident)
    return tuple(merged[key] for key in sorted(merged))


def _join(known: Incident, told: Incident) -> Incident:
    # The supervisor and the coordinator both see a lost node: each knows a part of it, and the dearer rung is what it cost.
    rungs = list(Rung)
    judged = told if _judged(told) > _judged(known) else known
    return dataclasses.replace(
        known,
        cause=_cause(known, told),
        reason=told.reason if known.cause is Cause.SCALE else known.reason,
        rung=max(known.rung, told.rung, key=rungs.index),
        culprit=_sharper(known.culprit, told.culprit),
        detected_at=min(known.detected_at, told.detected_at),
        healed_at=told.healed_at if known.healed_at is None else known.healed_at,
        trained_at=told.trained_at if known.trained_at is None else known.trained_at,
        last_step=told.last_step if known.last_step is None else known.last_step,
        resumed_step=told.resumed_step if known.resumed_step is None else known.resumed_step,
        kind=judged.kind,
        answer=judged.answer,
        rule=judged.rule,
        clock=known.clock or told.clock,
        refilled=known.refilled or told.refilled,
        evidence=known.evidence or told.evidence,
        places=known.places or told.places,
    )


def _cause(known: Incident, told: Incident) -> Cause:
    if Cause.SCALE in (known.cause, told.cause):
        # That a node leaves is all that its agent knows; the supervisor has seen why.
        return told.cause if known.cause is Cause.SCALE else known.cause
    # That it was free (somebody was preempted, say) is known to one of the two only, and it is not charged then.
    return told.cause if told.cause in FREE else known.cause


def _judged(incident: Incident) -> tuple[bool, bool, bool]:
    """Rank how much is known of an end: that a node is gone is what is said for want of anything better."""
    kind = incident.kind
    return kind not in (None, FaultKind.NODE_LOST), incident.answer is not None, kind is not None


def _sharper(known: Culprit | None, told: Culprit | None) -> Culprit | None:
    """Return the one that names a worker; a node that was given up for one of its workers is told of as both."""
    if known is None or told is None:
        return known or told
    return told if known.local_rank < 0 <= told.local_rank else known
