"""The calls between a client and the ledger of a cluster: JSON over HTTP, one POST each.

A call names a method of the ledger and carries its arguments; the answer is a JSON value, or an error of
`backends/contract.py` by its name. The key in the header `Authorization` proves that the caller may use the Jobs API of the
cluster, which gave it out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from rallypoint.backends.contract import (
    ActionError,
    BackendError,
    ConflictError,
    HeldError,
    JobExistsError,
    JobFinishedError,
    JobNotFoundError,
    LogLine,
    ResizeError,
    Stored,
    SubmitError,
    Tail,
)
from rallypoint.backends.cursors import MAX_RANKS, Cursors, place_of, read_places
from rallypoint.backends.identity import require_job, require_status
from rallypoint.backends.ray.placement import Placement
from rallypoint.job import ElasticJob, JobError
from rallypoint.supervision import actions
from rallypoint.supervision.actions import Action
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.bounds import excess
from rallypoint.wire.plan import Plan
from rallypoint.wire.sanitize import clean_text
from rallypoint.wire.status import JobStatus

__all__ = [
    "WHERE",
    "action_from",
    "action_to",
    "error_from",
    "error_to",
    "field",
    "job_from",
    "lines_of",
    "lines_to",
    "number",
    "read",
    "read_job",
    "read_lines",
    "read_placement",
    "read_status",
    "read_stored",
    "read_tail",
    "stored_from",
    "stored_to",
    "tail_to",
    "write_record",
]

T = TypeVar("T")

#: Seconds between two requests for new lines of a log that is followed.
_FOLLOW = 0.3

#: Characters of how far one rank was read; four numbers of 20 digits need less. Others could stand for further ranks.
_PLACE, _SEPARATORS = 100, re.compile(r"[=;]")

#: Characters of an error that a ledger answers with.
_TEXT = 2000

#: Where a job was found, for errors.
WHERE = "the response of the ledger"

_ACTIONS = {name: getattr(actions, name) for name in actions.__all__ if name != "Action"}
_ERRORS: dict[str, type[BackendError]] = {
    kind.__name__: kind
    for kind in (
        *(BackendError, ConflictError, JobExistsError, JobFinishedError),
        *(JobNotFoundError, ResizeError, SubmitError),
    )
}


def action_to(action: Action) -> dict[str, Any]:
    """Return an action as JSON."""
    return {"kind": type(action).__name__, "fields": codec.to_json(action)}


def action_from(data: Any) -> Action:
    """Return the action of such JSON; raises `BackendError`."""
    kind = _ACTIONS.get(str(data.get("kind"))) if isinstance(data, dict) else None
    if kind is None:
        raise BackendError(f"request to the ledger: action {data!r:.200} is not allowed; expected one of {', '.join(_ACTIONS)}")
    found: Action = codec.from_json(kind, data.get("fields"))
    return found


def stored_to(stored: Stored | None) -> Any:
    """Return a loaded job as JSON."""
    if stored is None:
        return None
    record = json.loads(stored.record.to_json())
    return {"record": record, "plan": codec.to_json(stored.plan), "version": stored.version}


def stored_from(data: Any) -> Stored | None:
    """Return the loaded job of such JSON."""
    if data is None:
        return None
    text = json.dumps(data["record"])
    if limit := excess(text.encode()):
        raise BackendError(f"the job record in the response of the ledger has more than {limit}, the largest allowed size")
    record = JobRecord.from_json(text)
    return Stored(record=record, plan=codec.from_json(Plan, data["plan"]), version=str(data["version"]))


async def write_record(record: JobRecord) -> Any:
    """Return a record as JSON, written in a thread: a supervisor sends it at each turn."""
    return await asyncio.to_thread(lambda: json.loads(record.to_json()))


async def read(cls: type[T], data: Any) -> T:
    """Return a value of the ledger's answer as a `cls`, read in a thread; raises `BackendError` for one that it cannot be."""
    return await _in_thread(lambda: codec.from_json(cls, data))


def job_from(data: Any) -> ElasticJob:
    """Return the job of a document; raises `BackendError`. A text is no document: it could be the path of a file here."""
    try:
        return ElasticJob.model_validate(data)
    except JobError as error:
        raise BackendError(f"cannot read the job document: {str(error)[:500]}") from error


async def read_job(data: Any) -> ElasticJob:
    """Return the job of an answer, as `read` does."""
    return await _in_thread(lambda: job_from(data))


async def read_placement(data: Any) -> Placement:
    """Return the placement of an answer, as `read` does."""
    return await _in_thread(lambda: codec.loads(Placement, str(data)))


async def read_stored(data: Any, *, name: str) -> Stored | None:
    """Return the loaded job `name` of an answer, as `read` does."""
    stored = await _in_thread(lambda: stored_from(data))
    if stored is not None:
        require_job(stored.record, stored.plan, name=name, where=WHERE)
    return stored


async def read_status(data: Any, *, name: str) -> JobStatus:
    """Return the status of job `name` of an answer, as `read` does."""
    status = await read(JobStatus, data)
    require_status(status, name=name, where=WHERE, kind=BackendError)
    return status


def lines_to(lines: Sequence[LogLine]) -> list[list[Any]]:
    """Return lines of a log as JSON: each names how far its rank was read, and not all other ranks as its cursor does."""
    return [[line.rank, line.stream, line.text, place_of(line.cursor)] for line in lines]


def tail_to(tail: Tail) -> dict[str, Any]:
    """Return the end of a log as JSON."""
    return {"lines": lines_to(tail.lines), "cursor": tail.cursor}


async def read_lines(cursor: str, data: Any, *, rank: int | None, ranks: int) -> list[LogLine]:
    """Return the lines of an answer to a request for the lines of `rank` after `cursor`, as `read` does.

    Any program on the Ray cluster can announce a ledger, so lines of other ranks and of ranks from `ranks` on are left out.
    """
    return await _in_thread(lambda: _lines(cursor, data, range(ranks) if rank is None else range(rank, rank + 1)))


async def lines_of(
    request: Callable[[str], Awaitable[Any]], *, cursor: str, follow: bool, rank: int | None, ranks: int
) -> AsyncIterator[LogLine]:
    """Yield the lines of a log after `cursor`; with `follow` until the job is over. Raises `BackendError`.

    Args:
        request: requests the next lines after a cursor.
        rank, ranks: see `read_lines`.
    """
    while True:
        data = await request(cursor)
        lines = await read_lines(cursor, field(data, "lines"), rank=rank, ranks=ranks)
        for line in lines:
            yield line
        if lines:
            cursor = await asyncio.to_thread(str, lines[-1].cursor)
            continue
        if field(data, "over") or not follow:
            return
        await asyncio.sleep(_FOLLOW)


async def read_tail(data: Any) -> Tail:
    """Return the end of a log of an answer, as `read` does."""
    return await _in_thread(
        lambda: Tail(
            lines=tuple(dataclasses.replace(line, cursor="") for line in _lines("", field(data, "lines"), range(MAX_RANKS))),
            cursor=str(field(data, "cursor")),
        )
    )


def _lines(cursor: str, data: Any, ranks: range) -> list[LogLine]:
    cursors = Cursors(read_places(cursor, ranks.stop, str))
    return [
        LogLine(
            rank=rank, stream=str(stream), text=str(text), cursor=cursors.move(rank, _SEPARATORS.sub("", str(place))[:_PLACE])
        )
        for rank, stream, text, place in data
        if type(rank) is int and rank in ranks  # True is no rank, and would be written as one
    ]


def field(data: Any, name: str) -> Any:
    """Return a field of an answer; raises `BackendError` where there is none."""
    if not isinstance(data, dict) or name not in data:
        raise BackendError(f"cannot read the response of the ledger: the field {name!r} is missing")
    return data[name]


def number(data: Any, name: str) -> int:
    """Return a whole number of an answer; raises `BackendError` where it is none."""
    found = field(data, name)
    if not isinstance(found, int):
        raise BackendError(
            f"cannot read the response of the ledger: field {name}: {found!r:.200} is not allowed; expected a number"
        )
    return found


async def _in_thread(function: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(function)
    except (codec.WireError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BackendError(f"cannot read the response of the ledger: {str(error)[:500]}") from error


def error_to(error: BackendError) -> dict[str, Any]:
    """Return an error as JSON."""
    if isinstance(error, ActionError):
        return {"kind": "ActionError", "text": str(error), "fatal": error.fatal, "waits": error.waits}
    if isinstance(error, HeldError):
        return {"kind": "HeldError", "text": str(error), "holder": error.holder}
    kind = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _ERRORS), "BackendError")
    return {"kind": kind, "text": str(error)}


def error_from(data: Any, *, name: str) -> BackendError:
    """Return the error of such JSON; `name` is the job that the call was about."""
    if not isinstance(data, dict):
        return BackendError(f"the ledger answered with an error of an unknown form: {data!r:.200}")
    kind, text = str(data.get("kind"))[:_TEXT], clean_text(str(data.get("text")), _TEXT)
    if kind == "ActionError":
        return ActionError(text, fatal=data.get("fatal") is True, waits=data.get("waits") is True)
    if kind == "HeldError":
        return HeldError(name, clean_text(str(data.get("holder")), _TEXT))
    return _ERRORS.get(kind, BackendError)(text)
