"""Batch tuning: when every node has measured a batch size, select the next one and send it to all nodes. Pure.

The model of a worker's memory is linear in the batch size: a constant part, and a part per sample. Two measurements determine
both parts. One measurement gives an upper bound of the part per sample, because the constant part is not negative: a batch
larger by some factor needs at most that factor of memory, so an increase within this bound is safe. No knowledge of the
network is needed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rallypoint.capabilities.base import CoordinatorCapability, Effect, RecordEvent, RoundView
from rallypoint.capabilities.tuned_batch.wire import (
    AssignmentSection,
    NodeTuning,
    ReplySection,
    ReportSection,
    Seen,
    StatusSection,
    Tuned,
    Tuning,
)
from rallypoint.wire.incident import FaultKind
from rallypoint.wire.messages import AgentReport
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus, Member

__all__ = ["Choice", "State", "TunedBatch", "create", "line", "next_batch"]

#: Number of measurements to keep.
_KEPT = 16

#: Fraction of the limit to use; the rest is for rounding and fragmentation in allocators.
_SHARE = 0.9

#: Largest factor between two batch sizes in a row, because the model is less exact far from a measurement.
_LEAP = 2.0

#: Smallest factor between two batch sizes that justifies a change.
_WORTH = 1.05

#: Number of larger batch sizes without more memory use after which the script is assumed to ignore the batch size.
_DEAF = 2


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The next batch size; `settled` is the reason why it stays the same, "" if it changes."""

    batch: int
    settled: str = ""


def line(seen: Sequence[Seen]) -> tuple[float, float] | None:
    """Return the constant memory and the memory per sample, in bytes, from the last two different batch sizes, or None."""
    if not seen:
        return None
    last = seen[-1]
    other = next((one for one in reversed(seen[:-1]) if one.batch != last.batch), None)
    if other is None:
        return None
    each = (last.memory - other.memory) / (last.batch - other.batch)
    return last.memory - each * last.batch, each


def next_batch(seen: Sequence[Seen], limit: int, ceiling: int = 0) -> Choice:
    """Return the batch to try after those that were measured, the oldest first, within `limit` bytes for a worker.

    `ceiling`: memory ran out with any that is larger; 0 where that was not seen. Raises `ValueError` for nothing measured.
    """
    if not seen:
        raise ValueError("batch tuning: there is no measurement of memory use; expected at least one")
    last, usable = seen[-1], limit * _SHARE
    if last.memory > usable:
        return _shrunk(seen, usable)
    if _unheard(seen):
        return Choice(
            batch=last.batch, settled="memory use does not grow with the batch; the script may not apply the batch size"
        )
    known = line(seen)
    proportional = last.batch * usable / last.memory
    if known is None or known[1] <= 0:
        wanted = proportional
    else:
        anyhow, each = known
        wanted = (usable - anyhow) / each
    wanted = min(wanted, last.batch * _LEAP)
    bound = ceiling or wanted
    batch = int(min(wanted, bound))
    if batch < last.batch * _WORTH or batch == last.batch:
        why = "a larger batch ran out of memory" if ceiling and bound < wanted else "the memory limit is reached"
        return Choice(batch=last.batch, settled=why)
    return Choice(batch=batch)


def _shrunk(seen: Sequence[Seen], usable: float) -> Choice:
    """Return a batch that fits, for one that uses more than it may."""
    last = seen[-1]
    fitting = max((one.batch for one in seen if one.memory <= usable), default=0)
    known = line(seen)
    if known is not None and known[1] > 0:
        fitting = max(fitting, int((usable - known[0]) / known[1]))
    elif not fitting:
        fitting = int(last.batch * usable / last.memory)
    batch = max(1, min(fitting, last.batch - 1))
    return Choice(batch=batch, settled="one sample already exceeds the available memory" if last.batch == 1 else "")


def _unheard(seen: Sequence[Seen]) -> bool:
    """Return whether the last few batches grew and the memory never did."""
    tail = seen[-_DEAF - 1 :]
    if len(tail) <= _DEAF:
        return False
    pairs = itertools.pairwise(tail)
    return all(later.batch > former.batch and later.memory <= former.memory for former, later in pairs)


# --- In the rendezvous -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class State:
    """What is known of the batch.

    Attributes:
        tuning: as it is published; None before the first measurement of all nodes.
        measured: a node reported another measurement since the last conclusion.
        out_of_memory: a worker ran out of memory since then.
    """

    tuning: Tuning | None = None
    measured: bool = False
    out_of_memory: bool = False


class TunedBatch(CoordinatorCapability[State]):
    """The coordinator's half of the capability. It acts on measurements alone, which nodes send where the plan asks for it."""

    name = "tuned_batch"

    def restore(self, published: JobStatus | None, *, continues: bool, now: float) -> State:
        """Begin with the batch that is known: also that of an earlier attempt."""
        return State(tuning=None if published is None else StatusSection.of(published).tuning)

    def on_report(self, state: State, report: AgentReport, before: AgentReport | None, view: RoundView, now: float) -> State:
        """Note whether a node measured something, or a worker of it ran out of memory."""
        ours = ReportSection.of(report).tuning
        if ours is None:
            return state
        if report.failures and not (before is not None and before.failures):
            full = any(failure.kind is FaultKind.OOM for failure in report.failures)
            return dataclasses.replace(state, out_of_memory=True) if full else state
        same = state.measured or (before is not None and ReportSection.of(before).tuning == ours)
        return state if same else dataclasses.replace(state, measured=True)

    def on_tick(self, state: State, view: RoundView, now: float) -> tuple[State, Sequence[Effect]]:
        """Choose the next batch once all nodes have measured, or go back to one that fitted."""
        if not (state.measured or state.out_of_memory):
            return state, ()
        known = state.tuning or Tuning()
        after, detail = _after_failure(known) if state.out_of_memory else (known, "")
        if not detail and state.measured:
            after, detail = _after_measurement(known, view)
        tuning = state.tuning if after is known else after
        return State(tuning=tuning), (RecordEvent(kind="tuned", detail=detail),) if detail else ()

    def reply_for(self, state: State, report: AgentReport) -> ReplySection | None:
        """Return the batch size for an agent that has not received it yet."""
        wanted, node = _tuned(state), ReportSection.of(report).tuning
        return None if wanted is None or node is None or node.version >= wanted.version else ReplySection(tuned=wanted)

    def assignment_for(self, state: State, member: Member, view: RoundView) -> AssignmentSection | None:
        """Return the initial batch size of workers; None: the script's own."""
        wanted = _tuned(state)
        return None if wanted is None else AssignmentSection(tuned=wanted)

    def reply_key(self, state: State) -> object:
        """Return the requested batch size."""
        return _tuned(state)

    def to_status(self, state: State, view: RoundView) -> StatusSection:
        """Return the section with the measurements, which the next attempt uses again."""
        return StatusSection(tuning=state.tuning)


def create(_plan: Plan) -> TunedBatch:
    """Return the coordinator half. Without batch tuning in the job, no node sends measurements."""
    return TunedBatch()


def _tuned(state: State) -> Tuned | None:
    known = state.tuning
    return Tuned(version=known.version, batch=known.batch) if known is not None and known.version else None


def _after_measurement(known: Tuning, view: RoundView) -> tuple[Tuning, str]:
    """Return the tuning after the measurements of all nodes, and a description of the change ("" if there is none)."""
    measured = _together(view)
    if measured is None or known.settled or measured.version != known.version:
        return known, ""
    seen = (*known.seen, Seen(batch=measured.batch, memory=measured.memory))[-_KEPT:]
    choice = next_batch(seen, measured.limit, known.ceiling)
    known = dataclasses.replace(known, batch=measured.batch, seen=seen, limit=measured.limit, settled=choice.settled)
    used = f"{measured.memory >> 20} of {measured.limit >> 20} MiB"
    if choice.batch == measured.batch:
        return known, f"batch size per worker stays {choice.batch} (memory: {used}); reason: {choice.settled}"
    return _changed(known, choice.batch, f"batch size {measured.batch} used {used} of memory")


def _after_failure(known: Tuning) -> tuple[Tuning, str]:
    """Return to the largest batch size that worked, after memory ran out with a larger one."""
    fitting = max((one.batch for one in known.seen if one.batch < known.batch), default=0)
    if not known.version or not fitting:
        return known, ""
    limited = dataclasses.replace(known, ceiling=known.batch - 1, settled="a larger batch ran out of memory")
    return _changed(limited, fitting, f"memory ran out with batch size {known.batch}")


def _changed(known: Tuning, batch: int, why: str) -> tuple[Tuning, str]:
    known = dataclasses.replace(known, version=known.version + 1, batch=batch)
    return known, f"batch size per worker set to {batch}; reason: {why}"


def _together(view: RoundView) -> NodeTuning | None:
    """Return the largest memory use and the smallest limit of all nodes of the world; None until all have measured."""
    told = [ReportSection.of(report).tuning for _, report in view.members()]
    nodes = [one for one in told if one is not None and one.memory > 0]
    if len(nodes) < len(view.world) or not nodes or len({(one.version, one.batch) for one in nodes}) > 1:
        return None
    return dataclasses.replace(nodes[0], memory=max(one.memory for one in nodes), limit=min(one.limit for one in nodes))
