"""Asking all workers of a running job to do something at their next step boundary, and waiting for their answers.

The wish goes into the record, as every wish does; from there it travels by itself (wire/wish.py), and the answers are in the
job's status. Each part is safe to repeat and to be cut off.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass

from rallypoint.backends.contract import Backend, BackendError, ConflictError, JobFinishedError, JobNotFoundError
from rallypoint.backends.turns import Backoff
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.line import Verb
from rallypoint.wire.sections import value_of
from rallypoint.wire.status import JobStatus
from rallypoint.wire.wish import ASKED, Wish, WishStatus

__all__ = ["AskError", "Heard", "await_answers", "may_be_paused", "request_wish"]

#: Seconds between two looks at the status, where nothing wakes us before.
_LOOK = 0.5


class AskError(BackendError):
    """There are no workers now that could be asked."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What is known of a wish: the `status` with the answers, and whether nothing more is to be expected."""

    status: JobStatus | None
    settled: bool


def may_be_paused(record: JobRecord) -> bool:
    """Return whether workers of the running attempt were asked to pause, and not to go on since."""
    wish = record.wish
    return wish is not None and wish.attempt == record.attempt and wish.verb in (Verb.PAUSE, Verb.SAVE)


async def request_wish(backend: Backend, name: str, verb: Verb, *, owner: str | None = None) -> Wish | None:
    """Ask the workers of a job for `verb`: pause, resume, save or stop; return the wish, None where the job is not `owner`'s.

    Raises `JobNotFoundError`, `JobFinishedError` for a job that is over or being deleted, and `AskError` where none of it runs.
    """
    if verb not in ASKED:
        command, commands = verb.value, [asked.value for asked in ASKED]
        raise AskError(f"command {command} is not allowed; expected one of {', '.join(commands)}")
    backoff = Backoff(name)
    while True:
        stored = await backend.load(name)
        if stored is None:
            raise JobNotFoundError(f"job {name!r} not found")
        record = stored.record
        if owner is not None and record.owner != owner:
            return None
        _require_running(record, verb)
        number = 1 if record.wish is None else record.wish.number + 1
        wish = Wish(number=number, verb=verb, attempt=record.attempt)
        try:
            await backend.save(dataclasses.replace(record, wish=wish), version=stored.version)
        except ConflictError as error:
            await backoff.conflict(error)
            continue
        return wish


def _require_running(record: JobRecord, verb: Verb) -> None:
    command, phase = verb.value, record.phase.value or "just submitted"
    if record.deletion:
        raise JobFinishedError(f"the workers of job {record.name} cannot {command} any more: the job is being deleted")
    if record.finished:
        raise JobFinishedError(f"the workers of job {record.name} cannot {command} any more: the job has ended ({phase})")
    if record.suspend or record.phase is not Phase.RUNNING:
        state = "suspended" if record.suspend else phase
        raise AskError(f"job {record.name} is not running (state: {state}); its workers cannot {command}")


async def await_answers(backend: Backend, name: str, wish: Wish, *, timeout: float) -> Heard:
    """Wait until every rank has answered, the job is over, or `timeout` seconds have passed."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    async with backend.changes(name) as changes:
        while True:
            status = await backend.status(name)
            settled = status is not None and _settled(status, wish)
            if settled or loop.time() >= until:
                return Heard(status=status, settled=settled)
            await changes.wait(min(_LOOK, max(0.0, until - loop.time())))


def _settled(status: JobStatus, wish: Wish) -> bool:
    if status.verdict is not None or status.fence.attempt > wish.attempt:
        return True
    # Who stops has answered when it has ended: that is what was asked for.
    told: WishStatus | None = value_of(status, "wish")
    return wish.verb is not Verb.STOP and told is not None and told.number >= wish.number and told.settled
