"""Texts and values cut to a size, each so that doing it twice changes nothing. Pure; see `folding.py` for what for."""

from __future__ import annotations

import dataclasses
import itertools

from rallypoint.wire import codec
from rallypoint.wire.incident import Culprit, Incident, RankGroup
from rallypoint.wire.places import fold
from rallypoint.wire.sanitize import clean_text
from rallypoint.wire.status import Event, Progress, Verdict

__all__ = [
    "HISTORY_LIMIT",
    "MARK",
    "NAME_LIMIT",
    "REASON_LIMIT",
    "SHORT_LIMIT",
    "cut",
    "last_lines",
    "size_of",
    "size_of_event",
    "trim_event",
    "trim_incident",
    "trim_progress",
    "trim_verdict",
]

#: Lines of a record's history; the oldest go first.
HISTORY_LIMIT = 500

#: What a text ends with that was cut.
MARK = " […]"

#: Bytes of a message, of a reason, of a name; of one that is kept for completeness only.
_MESSAGE, REASON_LIMIT, NAME_LIMIT, SHORT_LIMIT = 1000, 300, 120, 80

#: Bytes of a log's path and of a checkpoint's. They are of use only as a whole: a longer one is left out.
_LOG_PATH, _CHECKPOINT = 512, 4096

#: Bytes of a log tail that is kept whole, of one that is not.
_TAIL, _LITTLE_TAIL = 3000, 240

#: Figures that are kept of a script's metrics.
_METRICS = 32

#: Bytes of an incident, a culprit and a line of history in JSON without their texts, each number in its longest form.
_INCIDENT, _CULPRIT, _EVENT = 380, 260, 80

#: The same of a group of ranks, and what all groups of an incident may have: whole, and where it is not.
_GROUP, _EVIDENCE, _LITTLE_EVIDENCE = 200, 4000, 700

#: The same of a run of ranks, and how many an incident may have: whole, and where it is not.
_SPAN, _SPANS, _LITTLE_SPANS = 100, 16, 3

#: Frames of a group at the most, native ones, bytes of one, and ranks that are named.
_FRAMES, _NATIVE, _FRAME, _RANKS = 12, 4, 130, 32

#: Bytes between two lines of a log tail.
_SEPARATOR = 4

#: Bytes that a character takes in JSON at the most (an escaped surrogate).
_WORST = 7


def size_of(incident: Incident) -> int:
    """Return the bytes of an incident as an item of a record in JSON: a few too many, but quickly."""
    culprit = incident.culprit
    used = _INCIDENT + _bytes(incident.reason) + _bytes(incident.rule)
    if culprit is not None:
        texts = (culprit.host, culprit.error, culprit.log_path, *culprit.log_tail)
        used += _CULPRIT + sum(map(_bytes, texts)) + _SEPARATOR * len(culprit.log_tail)
    return used + sum(map(_size_of_group, incident.evidence)) + _SPAN * len(incident.places)


def _size_of_group(group: RankGroup) -> int:
    # A rank is a number of up to six digits; a frame has quotes and a comma.
    texts = sum(map(_bytes, (group.state, group.phase, group.collective)))
    return _GROUP + 8 * len(group.ranks) + texts + sum(_bytes(frame) + _SEPARATOR for frame in (*group.frames, *group.native))


def size_of_event(event: Event) -> int:
    """Return the bytes of a line of history, as `size_of`."""
    return _EVENT + _bytes(event.kind) + _bytes(event.detail)


def _bytes(text: str) -> int:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return len(text)
    return len(codec.dumps(clean_text(text)).encode()) - 2  # as a record holds it


def cut(text: str, most: int) -> str:
    """Return the text within `most` bytes of JSON, `MARK` at its end if something is missing."""
    # A character has at least one byte, so no more of a text than fits is ever encoded: it may have megabytes.
    if len(text) * _WORST <= most or (len(text) <= most and _bytes(text) <= most):
        return text
    room, low, high = most - _bytes(MARK), 0, min(len(text), most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _bytes(text[:middle]) <= room else (low, middle - 1)
    return text[:low] + MARK


def last_lines(lines: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Return the last lines that have room in `most` bytes; of a single line that has none, its beginning."""
    if sum(map(len, lines)) * _WORST + 4 * len(lines) <= most:
        return lines
    used = 0
    for place in range(len(lines) - 1, -1, -1):
        used += _bytes(lines[place][: most + 1]) + 4
        if used > most:
            return lines[place + 1 :] or (cut(lines[-1], most - 4),)
    return lines


def trim_incident(incident: Incident, *, whole: bool) -> Incident:
    """Return an incident whose texts are bounded; without `whole` only a little of its log is kept."""
    culprit = incident.culprit
    if culprit is not None:
        culprit = trim_culprit(culprit, tail=_TAIL if whole else _LITTLE_TAIL)
    reason, rule = cut(incident.reason, REASON_LIMIT), cut(incident.rule, NAME_LIMIT)
    evidence = trim_evidence(incident.evidence, most=_EVIDENCE if whole else _LITTLE_EVIDENCE)
    places = fold(incident.places, _SPANS if whole else _LITTLE_SPANS)
    known = (incident.reason, incident.rule, incident.evidence, incident.places)
    if culprit is incident.culprit and (reason, rule, evidence, places) == known:
        return incident
    return dataclasses.replace(incident, reason=reason, rule=rule, culprit=culprit, evidence=evidence, places=places)


def trim_evidence(groups: tuple[RankGroup, ...], *, most: int) -> tuple[RankGroup, ...]:
    """Return the groups within `most` bytes: first with fewer frames each, then fewer groups; the first one stays."""
    groups = groups[: most // _GROUP + 1]  # more have no room, however small: a script can write any number of them
    for frames in (_FRAMES, 4, 1):
        groups = tuple(_with_frames(group, frames) for group in groups)
        if sum(map(_size_of_group, groups)) <= most:
            return groups
    sizes = itertools.accumulate(map(_size_of_group, groups))
    return groups[: max(1, sum(size <= most for size in sizes))]


def _with_frames(group: RankGroup, most: int) -> RankGroup:
    ranks = group.ranks[:_RANKS]
    trimmed = dataclasses.replace(
        group,
        ranks=ranks,
        more=group.more + len(group.ranks) - len(ranks),
        state=cut(group.state, SHORT_LIMIT),
        frames=tuple(cut(frame, _FRAME) for frame in group.frames[:most]),
        native=tuple(cut(frame, _FRAME) for frame in group.native[: min(most - 1, _NATIVE)]),
        phase=cut(group.phase, SHORT_LIMIT),
        collective=cut(group.collective, _FRAME),
    )
    return group if trimmed == group else trimmed


def trim_culprit(culprit: Culprit, *, tail: int) -> Culprit:
    """Return a culprit whose texts are bounded."""
    host, error = cut(culprit.host, NAME_LIMIT), cut(culprit.error, REASON_LIMIT)
    path, lines = _path(culprit.log_path, _LOG_PATH), last_lines(culprit.log_tail, tail)
    if (host, error, path, lines) == (culprit.host, culprit.error, culprit.log_path, culprit.log_tail):
        return culprit
    return dataclasses.replace(culprit, host=host, error=error, log_path=path, log_tail=lines)


def trim_event(event: Event) -> Event:
    """Return a line of history whose text is bounded."""
    kind, detail = cut(event.kind, SHORT_LIMIT), cut(event.detail, REASON_LIMIT)
    if (kind, detail) == (event.kind, event.detail):
        return event
    return dataclasses.replace(event, kind=kind, detail=detail)


def trim_verdict(verdict: Verdict) -> Verdict:
    """Return a verdict whose texts are bounded."""
    culprit = None if verdict.culprit is None else trim_culprit(verdict.culprit, tail=_TAIL)
    reason, message = cut(verdict.reason, NAME_LIMIT), cut(verdict.message, _MESSAGE)
    if culprit is verdict.culprit and (reason, message) == (verdict.reason, verdict.message):
        return verdict
    return dataclasses.replace(verdict, reason=reason, message=message, culprit=culprit)


def trim_progress(progress: Progress) -> Progress:
    """Return progress with the first of its metrics, and without a path that is too long to be kept."""
    path, metrics = _path(progress.checkpoint, _CHECKPOINT), progress.metrics
    if len(metrics) > _METRICS or any(len(name) > SHORT_LIMIT for name in metrics):
        metrics = {name: metrics[name] for name in list(metrics)[:_METRICS] if _bytes(name) <= SHORT_LIMIT}
    if path == progress.checkpoint and metrics is progress.metrics:
        return progress
    return dataclasses.replace(progress, checkpoint=path, metrics=metrics)


def _path(path: str, most: int) -> str:
    return path if len(path) * _WORST <= most or _bytes(path) <= most else ""
