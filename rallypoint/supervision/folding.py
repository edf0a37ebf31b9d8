"""What a record or a status may grow to, and what is given up first. Pure.

Theory of operation
===================

A record is stored as one object (a ConfigMap, a file) and is read and written on every change, so it must stay small whatever
happens: `LIMIT` bytes as JSON, for a job of up to a thousand nodes. What grows is cut back, the least useful first:

- A text that is too long is cut, with `MARK` at its end. Of a log tail the last lines stay.
- The oldest lines of history go.
- Of the attempts the first and the last stay; the numbers of those that stay tell how many went.
- The oldest incidents become counts (`Folded`), those that are still open in this attempt and the newest ones stay whole.

A budget is a count over incidents, so folding must not change it: nothing is lost and nothing is counted twice. The coordinator
goes on to tell an incident that the record has folded already, so each count remembers the highest id that went into it, and
what is told again is dropped (`news`). That is enough because incidents of one kind come in the order of their ids: those of a
round in the order of the rounds, those of a slot's nodes in the order of the incarnations. Ids without a round name a node,
whatever its end was called; those of a round name a fault of one cause.

`fold` is called once a turn. It looks at nothing that is the same object as before the turn, so an idle turn costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rallypoint.supervision.trimming import (
    HISTORY_LIMIT,
    NAME_LIMIT,
    REASON_LIMIT,
    SHORT_LIMIT,
    cut,
    size_of,
    size_of_event,
    trim_event,
    trim_incident,
    trim_progress,
    trim_verdict,
)
from rallypoint.wire.incident import Cause, Folded, Incident, IncidentId, Rung
from rallypoint.wire.result import RESULT_LIMIT
from rallypoint.wire.status import Event, JobStatus, Progress

if TYPE_CHECKING:  # a coordinator folds what it tells, and knows nothing of records
    from rallypoint.supervision.record import Attempt, JobRecord

__all__ = ["LAST_ATTEMPTS", "LIMIT", "STATUS_LIMIT", "bounded", "fold", "fold_told", "news", "take_over"]

#: Bytes of a record as JSON that are aimed at; a ConfigMap holds it together with the spec.
LIMIT = 192 * 1024

#: Bytes of a status as JSON without what grows with the world (members and ranks).
STATUS_LIMIT = 128 * 1024

#: Counts of incidents in a record, above which it takes over no other ones from a status: a script can write any number.
_COUNTS = 1024

#: Attempts that stay: so many of the first and of the last.
FIRST_ATTEMPTS, LAST_ATTEMPTS = 2, 50

#: Attempts, newest first, whose story is told whole: message, metrics, checkpoint.
_WHOLE_ATTEMPTS = 2

#: Bytes that incidents and history may have where there is room, and have in any case.
_INCIDENTS, _HISTORY = 72 * 1024, 36 * 1024
_LEAST = 6 * 1024

#: Bytes of the attempts that stay, and of everything else: names, conditions, timers, verdict, progress.
_ATTEMPTS, _REST = 44 * 1024, 20 * 1024

#: Bytes of a slot, of a count and of a charge at the most.
_SLOT, _FOLDED, _CHARGE = 130, 190, 22

#: Counts of old attempts that are kept apart; older ones are put together.
_OLD_COUNTS = 60

#: So few incidents fit in any case, once each is trimmed.
_FEW = 8

#: Incidents whose log tail is kept whole, newest first.
_TAILS = 8

#: Causes that are counted by node.
_BY_NODE = frozenset({Cause.NODE, Cause.PREEMPTION, Cause.EVACUATION})


def fold(record: JobRecord, before: JobRecord | None = None) -> JobRecord:
    """Return the record within its bounds; what is the same object as in `before`, which was within them, is not looked at."""
    changed = {name: getattr(record, name) for name in _GROWING if before is None or _differs(record, before, name)}
    if not changed:
        return record
    fields: dict[str, object] = {}
    if "verdict" in changed and record.verdict is not None:
        fields["verdict"] = trim_verdict(record.verdict)
    if "progress" in changed:
        fields["progress"] = trim_progress(record.progress)
    if {"incidents", "folded", "attempt", "result"} & set(changed):
        fields["incidents"], fields["folded"] = _fold_incidents(record)
    room = _Room(record, len(fields.get("folded", record.folded)))  # type: ignore[arg-type]
    if {"history", "result"} & set(changed):
        fields["history"] = _newest(map(trim_event, record.history[-HISTORY_LIMIT:]), room.share(_HISTORY))
    if "attempts" in changed:
        fields["attempts"] = _few_attempts(record.attempts)
    fields = {name: value for name, value in fields.items() if value != getattr(record, name)}
    return dataclasses.replace(record, **fields) if fields else record  # type: ignore[arg-type]


#: The fields of a record that grow.
_GROWING = ("incidents", "folded", "history", "attempts", "attempt", "verdict", "progress", "result")


def _differs(record: JobRecord, before: JobRecord, name: str) -> bool:
    ours, theirs = getattr(record, name), getattr(before, name)
    return ours is not theirs and ours != theirs


class _Room:
    """How many bytes a kind of memory may have beside slots and counts, which cannot be cut."""

    def __init__(self, record: JobRecord, counts: int) -> None:
        slots = len(record.slots) + len(record.retired)
        taken = _ATTEMPTS + _REST + _SLOT * slots + _FOLDED * counts + _CHARGE * len(record.charges)
        taken += 0 if record.result is None else RESULT_LIMIT
        self._part = max(0.0, LIMIT - taken) / (_INCIDENTS + _HISTORY)

    def share(self, most: int) -> int:
        return max(_LEAST, int(most * min(1.0, self._part)))


# --- Incidents -------------------------------------------------------------------------------------------------------------


def _fold_incidents(record: JobRecord) -> tuple[tuple[Incident, ...], tuple[Folded, ...]]:
    folded = _older_counts(record.folded, record.attempt)
    room = _Room(record, len(folded)).share(_INCIDENTS)
    kept, gone = _choose(record.incidents, record.attempt, room)
    folded = _counted(folded, gone)
    # More counts leave less room: once more, with the room that there is in the end.
    if gone and (less := _Room(record, len(folded)).share(_INCIDENTS)) < room:
        kept, more = _choose(kept, record.attempt, less)
        folded = _counted(folded, more)
    return kept, _older_counts(folded, record.attempt)


def _choose(incidents: Sequence[Incident], attempt: int, room: int) -> tuple[tuple[Incident, ...], tuple[Incident, ...]]:
    """Return the incidents that stay, trimmed, and those that go: open ones of this attempt stay first, then the newest."""

    def worth(incident: Incident) -> tuple[bool, int, float, IncidentId]:
        current = incident.id.attempt == attempt
        return current and incident.healed_at is None, incident.id.attempt, incident.detected_at, incident.id

    ranked = sorted(incidents, key=worth, reverse=True)
    kept: list[Incident] = []
    used = 0
    for incident in ranked:
        trimmed = trim_incident(incident, whole=len(kept) < _TAILS)
        used += size_of(trimmed)
        if used > room and len(kept) >= _FEW:
            break
        kept.append(trimmed)
    return tuple(sorted(kept, key=_id)), tuple(ranked[len(kept) :])


def _id(incident: Incident) -> IncidentId:
    return incident.id


def _key(incident: Incident) -> tuple[Cause, int, int]:
    by_node = incident.cause in _BY_NODE or incident.id.round == 0
    return incident.cause, incident.id.attempt, incident.id.node if by_node else -1


def _counted(folded: Iterable[Folded], gone: Iterable[Incident]) -> tuple[Folded, ...]:
    """Return the counts with these incidents added."""
    counts = {(f.cause, f.attempt, f.node): f for f in folded}
    for incident in gone:
        cause, attempt, node = key = _key(incident)
        one = Folded(
            cause=cause,
            attempt=attempt,
            node=node,
            count=1,
            first_at=float(int(incident.detected_at)),
            last_at=float(int(incident.detected_at)),
            last_clock=incident.clock,
            round=incident.id.round,
            sequence=-1 if incident.id.round else incident.id.sequence,
            # One that was only told is paid by no budget, and its count cannot tell it from the others.
            refilled=int(incident.refilled or incident.rung is Rung.NOTIFY),
        )
        counts[key] = one if key not in counts else _sum(counts[key], one)
    return _ordered(counts.values())


def _sum(one: Folded, other: Folded) -> Folded:
    return dataclasses.replace(
        one,
        count=one.count + other.count,
        first_at=min(one.first_at, other.first_at),
        last_at=max(one.last_at, other.last_at),
        last_clock=max(one.last_clock, other.last_clock),
        round=max(one.round, other.round),
        sequence=max(one.sequence, other.sequence),
        refilled=one.refilled + other.refilled,
    )


def _older_counts(folded: tuple[Folded, ...], attempt: int) -> tuple[Folded, ...]:
    """Return the counts with those of old attempts put together: first over the nodes, then over the attempts."""
    if all(f.attempt == attempt for f in folded):
        return folded
    old = _together(dataclasses.replace(f, node=-1) for f in folded if f.attempt != attempt)
    if len(old) > _OLD_COUNTS:
        older, newer = old[:-_OLD_COUNTS], old[-_OLD_COUNTS:]
        old = _together((*(dataclasses.replace(f, attempt=0) for f in older), *newer))
    return (*old, *_ordered(f for f in folded if f.attempt == attempt))


def _together(folded: Iterable[Folded]) -> tuple[Folded, ...]:
    counts: dict[tuple[Cause, int, int], Folded] = {}
    for f in folded:
        key = (f.cause, f.attempt, f.node)
        counts[key] = f if key not in counts else _sum(counts[key], f)
    return _ordered(counts.values())


def _ordered(folded: Iterable[Folded]) -> tuple[Folded, ...]:
    return tuple(sorted(folded, key=lambda f: (f.attempt, f.cause.value, f.node)))


# --- What the coordinator tells --------------------------------------------------------------------------------------------


def news(record: JobRecord, told: Iterable[Incident]) -> tuple[Incident, ...]:
    """Return those of the incidents that are not in one of the record's counts already."""
    counts = [f for f in record.folded if f.attempt == record.attempt]
    if not counts:
        return tuple(told)
    nodes: dict[int, int] = {}
    rounds: dict[tuple[Cause, int], int] = {}
    for f in counts:
        nodes[f.node] = max(nodes.get(f.node, -1), f.sequence)
        rounds[f.cause, f.node] = max(rounds.get((f.cause, f.node), 0), f.round)
    known = {incident.id for incident in record.incidents}

    def counted(incident: Incident) -> bool:
        if incident.id.round == 0:
            return incident.id.sequence <= nodes.get(incident.id.node, -1)
        cause, _, node = _key(incident)
        return incident.id.round <= rounds.get((cause, node), 0)

    return tuple(i for i in told if i.id in known or i.id.attempt != record.attempt or not counted(i))


def take_over(record: JobRecord, told: Iterable[Folded]) -> JobRecord:
    """Return the record with the coordinator's counts: it may have folded what no supervisor was there to see.

    What was folded there and is whole here stays whole; a count here that reaches as far, or is as high, is not touched.
    """
    counts = {(f.cause, f.attempt, f.node): f for f in record.folded}
    before, gone = dict(counts), set[IncidentId]()
    alike: dict[tuple[Cause, int, int], list[Incident]] = {}
    for incident in record.incidents:
        alike.setdefault(_key(incident), []).append(incident)
    for key, f in {(f.cause, f.attempt, f.node): f for f in told}.items():
        ours = counts.get(key)
        covered = [i for i in alike.get(key, ()) if _covers(f, i.id)]
        known = len(covered) + (0 if ours is None else ours.count)
        reaches = ours is not None and (ours.round, ours.sequence) >= (f.round, f.sequence)
        if f.attempt != record.attempt or reaches or known >= f.count:
            continue
        if ours is None and len(counts) >= _COUNTS:
            continue
        # Nobody knows better when they were: they count from now on.
        taken = dataclasses.replace(f, last_clock=record.clock)
        refilled = max(f.refilled, 0 if ours is None else ours.refilled)
        counts[key] = taken if ours is None else dataclasses.replace(_sum(ours, taken), count=f.count, refilled=refilled)
        gone.update(i.id for i in covered)
    if not gone and len(counts) == len(record.folded) and counts == before:
        return record
    kept = tuple(i for i in record.incidents if i.id not in gone)
    return dataclasses.replace(record, incidents=kept, folded=_ordered(counts.values()))


def _covers(folded: Folded, name: IncidentId) -> bool:
    return name.round <= folded.round if name.round else name.sequence <= folded.sequence


def fold_told(
    incidents: tuple[Incident, ...], folded: tuple[Folded, ...], attempt: int
) -> tuple[tuple[Incident, ...], tuple[Folded, ...]]:
    """Return a coordinator's incidents within their bounds, and its counts; a budget over both is the same as before."""
    kept, gone = _choose(incidents, attempt, STATUS_LIMIT // 2)
    return kept, _counted(folded, gone)


def bounded(status: JobStatus) -> JobStatus:
    """Return what is published within its bounds: texts cut, the oldest events left out."""
    room = STATUS_LIMIT
    fields: dict[str, object] = {}
    if status.result is not None:  # it is told whole: everything else has the room that is left
        room -= RESULT_LIMIT
        kept, gone = _choose(status.incidents, status.fence.attempt, room // 2)
        fields |= {"incidents": kept, "folded": _counted(status.folded, gone)}
    fields |= {
        "events": _newest(map(trim_event, status.events), room // 4),
        "progress": trim_progress(status.progress),
        "verdict": None if status.verdict is None else trim_verdict(status.verdict),
    }
    fields = {name: value for name, value in fields.items() if value != getattr(status, name)}
    return dataclasses.replace(status, **fields) if fields else status  # type: ignore[arg-type]


# --- History, attempts -----------------------------------------------------------------------------------------------------


def _newest(events: Iterable[Event], room: int) -> tuple[Event, ...]:
    kept, used = list(events), 0
    for place in range(len(kept) - 1, -1, -1):
        used += size_of_event(kept[place])
        if used > room:
            return tuple(kept[place + 1 :])
    return tuple(kept)


def _few_attempts(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Return the first and the last attempts; all but the newest with a shorter story."""
    if len(attempts) > FIRST_ATTEMPTS + LAST_ATTEMPTS:
        attempts = (*attempts[:FIRST_ATTEMPTS], *attempts[-LAST_ATTEMPTS:])
    newest = len(attempts) - _WHOLE_ATTEMPTS
    return tuple(_trim_attempt(attempt, whole=place >= newest) for place, attempt in enumerate(attempts))


def _trim_attempt(attempt: Attempt, *, whole: bool) -> Attempt:
    """Return an attempt whose texts are bounded; without `whole` only how it ended and how far it came."""
    progress = trim_progress(attempt.progress)
    if not whole:
        progress = Progress(step=progress.step, resumed_from=progress.resumed_from, at=progress.at)
    owner, reason = cut(attempt.owner, NAME_LIMIT), cut(attempt.reason, SHORT_LIMIT)
    message = cut(attempt.message, REASON_LIMIT if whole else NAME_LIMIT)
    if (owner, reason, message, progress) == (attempt.owner, attempt.reason, attempt.message, attempt.progress):
        return attempt
    return dataclasses.replace(attempt, owner=owner, reason=reason, message=message, progress=progress)
