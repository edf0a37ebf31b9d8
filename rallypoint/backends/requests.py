"""What people and tasks ask for: a job that runs, its result taken, its end. Each is safe to repeat and to be cut off."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass

from rallypoint.backends.contract import (
    Backend,
    BackendError,
    Blueprint,
    ConflictError,
    JobExistsError,
    JobFinishedError,
    JobNotFoundError,
    Stored,
)
from rallypoint.backends.supervise import OnTurn, supervise
from rallypoint.supervision.record import JobRecord

__all__ = [
    "Adoption",
    "How",
    "collect",
    "delete",
    "request_deletion",
    "request_resumption",
    "request_suspension",
    "submit_or_adopt",
]


class How(str, enum.Enum):
    """How a submission came to its job."""

    SUBMITTED = "submitted"  #: there was none
    ADOPTED = "adopted"  #: it ran already, and goes on for the new owner
    FOUND_FINISHED = "found-finished"  #: it ended while nobody took the result
    RESTARTED = "restarted"  #: it ended before; a new attempt of it begins, with all its memory


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """The job that a submission came to, and how."""

    stored: Stored
    how: How


async def submit_or_adopt(
    backend: Backend, blueprint: Blueprint, *, owner: str, clock: Callable[[], float] = time.time
) -> Adoption:
    """Return the job of this name and spec, owned by `owner` from now on; submitted where there is none.

    A job that runs is adopted and goes on. One that has ended is handed over if nobody took its result yet, and begins a new
    attempt otherwise, or when the spec is another one now. One that is being deleted, or is still being cleaned up before
    its new attempt, is seen through to that end first; this can take as long as its grace periods.

    Raises `JobExistsError` when a job of another spec runs under this name, and `SubmitError`.
    """
    name = blueprint.plan.name
    while True:
        stored = await backend.load(name)
        try:
            if stored is None:
                return Adoption(stored=await backend.submit(blueprint, owner=owner), how=How.SUBMITTED)
            adoption = await _adopt(backend, stored, blueprint, owner, clock)
        except ConflictError:
            continue
        except JobExistsError:
            if stored is not None or await backend.load(name) is None:
                raise
            continue  # another submission was a moment faster
        if adoption is not None:
            return adoption
        await supervise(backend, name, holder=owner, clock=clock)


async def _adopt(
    backend: Backend, stored: Stored, blueprint: Blueprint, owner: str, clock: Callable[[], float]
) -> Adoption | None:
    """Take over a job as it is; None when it must come to rest first."""
    record, same = stored.record, stored.record.digest == blueprint.plan.digest
    if record.deletion:
        return None
    if not record.finished:
        if not same:
            raise _another_spec(record, blueprint)
        return Adoption(stored=await _own(backend, stored, owner), how=How.ADOPTED)
    if same and not record.collected_by:
        return Adoption(stored=await _own(backend, stored, owner), how=How.FOUND_FINISHED)
    if not record.released:
        return None
    again = dataclasses.replace(record.restarted(owner=owner, now=clock()), digest=blueprint.plan.digest)
    restarted = await backend.save(again, version=stored.version, blueprint=blueprint)
    return Adoption(stored=restarted, how=How.RESTARTED)


def _another_spec(record: JobRecord, blueprint: Blueprint) -> JobExistsError:
    return JobExistsError(
        f"name: a job {record.name} runs already with another spec ({record.digest}; this one is {blueprint.plan.digest}; "
        f"owner {record.owner}, {record.phase.value or 'just submitted'}); wait for its end, or end it with: "
        f"rallypoint delete {record.name}"
    )


async def _own(backend: Backend, stored: Stored, owner: str) -> Stored:
    if stored.record.owner == owner:
        return stored
    detail = f"{stored.record.owner} handed over to {owner}"
    record = dataclasses.replace(stored.record, owner=owner).with_history("adopted", detail)
    return await backend.save(record, version=stored.version)


async def collect(backend: Backend, name: str, *, owner: str, if_owned: bool = False) -> JobRecord:
    """Mark a job's result as taken by `owner`, so that its next submission begins anew; raises `JobNotFoundError`.

    Returns the record as it is stored then. With `if_owned` a job of somebody else is left as it is; its `owner` says whose.
    """

    def take(record: JobRecord) -> JobRecord:
        theirs = not if_owned or record.owner == owner
        return dataclasses.replace(record, collected_by=owner) if theirs else record

    return (await _change(backend, name, take)).record


async def request_deletion(backend: Backend, name: str, *, owner: str | None = None) -> bool:
    """Ask for a job's deletion, which its supervisor then does; raises `JobNotFoundError`.

    With `owner` only if the job is still theirs. Returns whether it is asked for now.
    """

    def ask(record: JobRecord) -> JobRecord:
        theirs = owner is None or record.owner == owner
        return dataclasses.replace(record, deletion=True) if theirs else record

    return (await _change(backend, name, ask)).record.deletion


async def request_suspension(backend: Backend, name: str, *, owner: str | None = None) -> bool:
    """Ask for a job to be suspended: its supervisor ends what runs and keeps the record until the job is resumed.

    Time that it is suspended costs nothing: no clock runs and no budget pays. With `owner` only if the job is still theirs.
    Returns whether it is asked for now.

    Raises `JobNotFoundError`, and `JobFinishedError` for a job that is over or being deleted.
    """
    return await _wish_suspended(backend, name, owner, suspend=True)


async def request_resumption(backend: Backend, name: str, *, owner: str | None = None) -> bool:
    """Take the wish back that a job be suspended; its supervisor begins it again. As `request_suspension` in all else."""
    return not await _wish_suspended(backend, name, owner, suspend=False)


async def _wish_suspended(backend: Backend, name: str, owner: str | None, *, suspend: bool) -> bool:
    def ask(record: JobRecord) -> JobRecord:
        if owner is not None and record.owner != owner:
            return record
        if record.deletion or record.finished:
            what = "is being deleted" if record.deletion else f"is over ({record.phase.value})"
            raise JobFinishedError(f"job {name} {what}; it cannot be {'suspended' if suspend else 'resumed'} any more")
        return dataclasses.replace(record, suspend=suspend)

    return (await _change(backend, name, ask)).record.suspend


async def _change(backend: Backend, name: str, change: Callable[[JobRecord], JobRecord]) -> Stored:
    while True:
        stored = await backend.load(name)
        if stored is None:
            raise JobNotFoundError(f"there is no job {name}")
        changed = change(stored.record)
        if changed == stored.record:
            return stored
        try:
            return await backend.save(changed, version=stored.version)
        except ConflictError:
            continue


async def delete(
    backend: Backend,
    name: str,
    *,
    holder: str,
    owner: str | None = None,
    on_turn: OnTurn | None = None,
    timeout: float | None = None,
) -> bool:
    """Delete a job and return when nothing of it is left; drives the deletion unless another supervisor does.

    With `owner` only if the job is still theirs; returns whether it was deleted.

    Raises `JobNotFoundError`, and `BackendError` when it is not gone after `timeout` seconds; the deletion stays asked for.
    """
    if not await request_deletion(backend, name, owner=owner):
        return False
    try:
        await asyncio.wait_for(supervise(backend, name, holder=holder, on_turn=on_turn), timeout)
    except asyncio.TimeoutError:
        raise BackendError(
            f"job {name} is not gone after {timeout:g} s; its deletion was asked for and goes on with the next supervisor"
        ) from None
    return True
