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
    ResizeError,
    Stored,
    SubmitError,
    is_role_of,
    role_job,
)
from rallypoint.backends.supervise import supervise
from rallypoint.backends.turns import Backoff, OnTurn
from rallypoint.supervision.record import Advice, JobRecord, Phase
from rallypoint.supervision.resizing import refusal, size_of
from rallypoint.wire.masked import secrets_of
from rallypoint.wire.node_range import Size, parse_node_range
from rallypoint.wire.plan import Kind, Plan
from rallypoint.wire.role_plans import role_plans

__all__ = [
    "Adoption",
    "How",
    "collect",
    "delete",
    "note_tries",
    "read_size",
    "request_deletion",
    "request_resize",
    "request_resumption",
    "request_suspension",
    "role_of",
    "submit_or_adopt",
]


#: Seconds between two looks at what is left of a deleted job.
_LOOK = 0.5


class How(str, enum.Enum):
    """How a submission came to its job."""

    SUBMITTED = "submitted"  #: there was none
    ADOPTED = "adopted"  #: it ran already, and goes on for the new owner
    FOUND_FINISHED = "found-finished"  #: it ended while nobody took the result
    RENEWED = "renewed"  #: it ran already; its attempt is ended first, and then the next begins for the new owner
    RESTARTED = "restarted"  #: it ended before; a new attempt of it begins, with all its memory


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """The job that a submission came to, and how."""

    stored: Stored
    how: How


async def submit_or_adopt(
    backend: Backend,
    blueprint: Blueprint,
    *,
    owner: str,
    fresh: bool = False,
    kept: bool = False,
    clock: Callable[[], float] = time.time,
) -> Adoption:
    """Return the job of this name and spec, owned by `owner` from now on; submitted where there is none.

    A job that runs is adopted and goes on. One that has ended is handed over if nobody took its result yet, and begins a new
    attempt otherwise, or when the spec is another one now. One that is being deleted, or is still being cleaned up before
    its new attempt, is seen through to that end first; this can take as long as its grace periods.

    With `fresh` a job that runs for another owner is not adopted but begun anew: its attempt is ended first, and the next
    begins in the same record; where the spec is another one now, or another controller runs it, the whole job is ended first.

    With `kept` a job that has succeeded is handed over even if another took its result: that one did not live to tell.

    Raises `JobExistsError` when a job of another spec runs under this name, or one of another claimant whose result has not
    been taken yet, and `SubmitError`.
    """
    name = blueprint.plan.name
    backoff = Backoff(name)
    while True:
        stored = await backend.load(name)
        try:
            if stored is None:
                await _require_free_names(backend, blueprint)
                return Adoption(stored=await backend.submit(blueprint, owner=owner), how=How.SUBMITTED)
            foreign = _is_foreign(stored.record, blueprint)
            if foreign and not stored.record.collected_by and not stored.record.deletion:
                raise _another_claimant(stored.record, blueprint)
            stored = await _renewed(backend, stored, blueprint, owner) if fresh else stored
            if kept and not foreign and _may_be_kept(stored.record, blueprint):
                return Adoption(stored=await _own(backend, stored, blueprint, owner), how=How.FOUND_FINISHED)
            adoption = await _adopt(backend, stored, blueprint, owner, clock)
        except ConflictError as error:
            await backoff.conflict(error)
            continue
        except JobExistsError:
            if stored is not None or await backend.load(name) is None:
                raise
            continue  # another submission was a moment faster
        if adoption is not None:
            return adoption
        await supervise(backend, name, holder=owner, clock=clock)


async def _require_free_names(backend: Backend, blueprint: Blueprint) -> None:
    """Raise `SubmitError` where another job has the name of an elastic role's job."""
    plan = blueprint.plan
    roles = {role_job(plan.name, role.name): role.name for role in role_plans(plan) if role.elastic}
    # Elsewhere the jobs of roles are in a place of their own, which is not there yet.
    shared = bool(roles) and backend.units(plan.name).jobs is backend
    taken = roles.keys() & set(await backend.names()) if shared else ()
    for name in sorted(taken):
        raise SubmitError(
            f"roles.{roles[name]}: this role would run as job {name}, but a job of this name exists already; choose another "
            f"name for the job or for the role, or delete the existing job: rallypoint delete {name}"
        )


def _may_be_kept(record: JobRecord, blueprint: Blueprint) -> bool:
    return record.phase is Phase.SUCCEEDED and not record.deletion and record.digest == blueprint.plan.digest


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
        how = How.RENEWED if record.renew else How.ADOPTED
        return Adoption(stored=await _own(backend, stored, blueprint, owner), how=how)
    if same and not record.collected_by:
        return Adoption(stored=await _own(backend, stored, blueprint, owner), how=How.FOUND_FINISHED)
    if not record.released:
        return None
    restarted = record.restarted(owner=owner, now=clock())
    again = dataclasses.replace(restarted, digest=blueprint.plan.digest, claimant=blueprint.claimant or record.claimant)
    saved = await backend.save(again, version=stored.version, blueprint=_hiding_earlier(blueprint, stored.plan))
    return Adoption(stored=saved, how=How.RESTARTED)


def _hiding_earlier(blueprint: Blueprint, earlier: Plan) -> Blueprint:
    """Return a blueprint whose plan also hides the secrets of earlier attempts: their output stays in the logs."""
    plan = blueprint.plan
    own = secrets_of(plan)
    hidden = (*plan.hidden, *(secret for secret in secrets_of(earlier) if secret not in own))
    return blueprint if hidden == plan.hidden else dataclasses.replace(blueprint, plan=dataclasses.replace(plan, hidden=hidden))


async def _renewed(backend: Backend, stored: Stored, blueprint: Blueprint, owner: str) -> Stored:
    """Have the attempt of an earlier owner ended, unless there is none; the job as it is stored then."""
    record = stored.record
    if record.finished or record.deletion or record.owner == owner:
        return stored
    if record.digest != blueprint.plan.digest or stored.plan.kind is Kind.APPWRAPPER:
        return await backend.save(dataclasses.replace(record, deletion=True), version=stored.version)
    detail = f"{record.owner} transferred the job to {owner}, which restarts it"
    fields = {"owner": owner, "renew": True, "suspend": False, "size": None, "retries": 0, "charges": ()}
    record = dataclasses.replace(record, **fields).with_history("renewed", detail)  # type: ignore[arg-type]
    return await backend.save(record, version=stored.version)


def _another_spec(record: JobRecord, blueprint: Blueprint) -> JobExistsError:
    return JobExistsError(
        f"name: job {record.name} is already running with another specification ({record.digest}; this one is "
        f"{blueprint.plan.digest}; owner {record.owner}, {record.phase.value or 'just submitted'}); wait for its "
        f"end, or delete it with: rallypoint delete {record.name}"
    )


def _is_foreign(record: JobRecord, blueprint: Blueprint) -> bool:
    """Return whether a job was submitted by another task or person, and not by an earlier try of this one."""
    return bool(record.claimant and blueprint.claimant and record.claimant != blueprint.claimant)


def _another_claimant(record: JobRecord, blueprint: Blueprint) -> JobExistsError:
    same = "the same" if record.digest == blueprint.plan.digest else "another"
    return JobExistsError(
        f"name: job {record.name} belongs to {record.claimant}, which has not read the job's result yet "
        f"({record.phase.value or 'just submitted'}, {same} specification); this is {blueprint.claimant}. Choose "
        f"another name, wait for that task, or delete the job: rallypoint delete {record.name}"
    )


async def _own(backend: Backend, stored: Stored, blueprint: Blueprint, owner: str) -> Stored:
    if stored.record.owner == owner:
        return stored
    detail = f"{stored.record.owner} transferred the job to {owner}"
    claimant = blueprint.claimant or stored.record.claimant
    record = dataclasses.replace(stored.record, owner=owner, claimant=claimant).with_history("adopted", detail)
    return await backend.save(record, version=stored.version)


async def note_tries(backend: Backend, name: str, *, owner: str, tries: int) -> JobRecord:
    """Note what the owner was allowed when it took the job, if it is still theirs; raises `JobNotFoundError`."""

    def note(record: JobRecord) -> JobRecord:
        return dataclasses.replace(record, tries=tries) if record.owner == owner else record

    return (await _change(backend, name, note)).record


async def collect(
    backend: Backend,
    name: str,
    *,
    owner: str,
    if_owned: bool = False,
    advise: Callable[[Advice], Advice] | None = None,
) -> JobRecord:
    """Mark a job's result as taken by `owner`, so that its next submission begins anew; raises `JobNotFoundError`.

    `advise` decides what the next submission is to do otherwise, by what was decided before.

    Returns the record as it is stored then. With `if_owned` a job of somebody else is left as it is; its `owner` says whose.
    """

    def take(record: JobRecord) -> JobRecord:
        theirs = not if_owned or record.owner == owner
        if not theirs or record.collected_by == owner:
            return record
        return dataclasses.replace(
            record, collected_by=owner, advice=record.advice if advise is None else advise(record.advice)
        )

    return (await _change(backend, name, take)).record


async def request_deletion(backend: Backend, name: str, *, owner: str | None = None) -> bool:
    """Ask for a job's deletion, which its supervisor then does; raises `JobNotFoundError`.

    With `owner` only if the job is still theirs. Returns whether it is asked for now.
    """
    return (await _ask_for_deletion(backend, name, owner)).deletion


async def _ask_for_deletion(backend: Backend, name: str, owner: str | None) -> JobRecord:
    def ask(record: JobRecord) -> JobRecord:
        theirs = owner is None or record.owner == owner
        return dataclasses.replace(record, deletion=True) if theirs else record

    return (await _change(backend, name, ask)).record


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


def read_size(nodes: int | str) -> Size:
    """Return the bounds that `N` or `MIN:MAX` means; raises `ResizeError`."""
    try:
        found = parse_node_range(nodes.strip() if isinstance(nodes, str) else nodes)
    except ValueError as error:
        raise ResizeError(str(error)) from None
    return Size(min_nodes=found.min, max_nodes=found.max)


async def request_resize(backend: Backend, name: str, size: Size, *, owner: str | None = None, role: str = "") -> bool:
    """Ask for a job to have other bounds of its world; its supervisor makes or ends nodes, and no other node is touched.

    They hold until the job is submitted anew. With `owner` only if the job is still theirs; `role` is the elastic role that is
    meant of a job with several. Returns whether that is news.

    Raises `JobNotFoundError`, `JobFinishedError` for a job that is over or being deleted, and `ResizeError` for bounds that it
    cannot have.
    """
    stored = await backend.load(name)
    if stored is None:
        raise JobNotFoundError(f"job {name!r} not found")
    if role or stored.plan.roles:
        if owner is not None and stored.record.owner != owner:
            return False
        _require_unfinished(stored.record, "resized")
        jobs, own = await role_of(backend, stored, role)
        return await request_resize(jobs, own, size)
    if refused := refusal(stored.plan, size):
        raise ResizeError(f"job {name}: {refused}")
    await backend.check_size(stored, size)
    changed = False

    def ask(record: JobRecord) -> JobRecord:
        nonlocal changed
        if owner is not None and record.owner != owner:
            return record
        _require_unfinished(record, "resized")
        changed = size_of(record, stored.plan) != size
        return dataclasses.replace(record, size=size) if changed else record

    await _change(backend, name, ask)
    return changed


async def role_of(backend: Backend, stored: Stored, role: str) -> tuple[Backend, str]:
    """Return where the job of an elastic role is, and its name; raises `ResizeError` where that has no size of its own."""
    name, roles = stored.record.name, role_plans(stored.plan)
    elastic = [one.name for one in roles if one.elastic]
    allowed = f"expected an elastic role: {', '.join(elastic)}" if elastic else "the job has no elastic role"
    if not roles and stored.plan.kind is not Kind.PODS:
        kind = stored.plan.kind.value
        raise ResizeError(f"job {name}: role {role!r} cannot be resized, because the job has kind {kind}; expected kind pods")
    if not roles:
        raise ResizeError(f"job {name}: role {role!r} is not allowed, because the job has only one role; omit the role")
    if role not in elastic:
        told = f"role {role!r} is not allowed" if role else "a job with several roles has no size of its own"
        raise ResizeError(f"job {name}: {told}; {allowed}")
    jobs, own = backend.units(name).jobs, role_job(name, role)
    found = await jobs.load(own)
    if found is not None and not is_role_of(found.record, stored.record):
        raise ResizeError(
            f"job {name}: role {role!r} cannot start, because it would run as job {own}, but another job has this name"
        )
    return jobs, own


def _require_unfinished(record: JobRecord, done: str) -> None:
    if record.deletion:
        raise JobFinishedError(f"job {record.name} cannot be {done} any more: the job is being deleted")
    if record.finished:
        phase = record.phase.value
        raise JobFinishedError(f"job {record.name} cannot be {done} any more: the job has ended ({phase})")


async def _wish_suspended(backend: Backend, name: str, owner: str | None, *, suspend: bool) -> bool:
    def ask(record: JobRecord) -> JobRecord:
        if owner is not None and record.owner != owner:
            return record
        _require_unfinished(record, "suspended" if suspend else "resumed")
        return dataclasses.replace(record, suspend=suspend)

    return (await _change(backend, name, ask)).record.suspend


async def _change(backend: Backend, name: str, change: Callable[[JobRecord], JobRecord]) -> Stored:
    backoff = Backoff(name)
    while True:
        stored = await backend.load(name)
        if stored is None:
            raise JobNotFoundError(f"job {name!r} not found")
        changed = change(stored.record)
        if changed == stored.record:
            return stored
        try:
            return await backend.save(changed, version=stored.version)
        except ConflictError as error:
            await backoff.conflict(error)


async def _require_readable_roles(backend: Backend, name: str) -> None:
    """Raise `BackendError` where the job of an elastic role cannot be read: no supervisor could ever end that deletion."""
    stored = await backend.load(name)
    for role in () if stored is None else role_plans(stored.plan):
        if role.elastic:
            await backend.units(name).jobs.load(role_job(name, role.name))


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

    Raises `JobNotFoundError`, and `BackendError` when it is not gone after `timeout` seconds, or when the job of one of its
    roles cannot be read; the deletion stays asked for.
    """
    record = await _ask_for_deletion(backend, name, owner)
    if not record.deletion:
        return False
    await _require_readable_roles(backend, name)

    async def to_the_end() -> None:
        await supervise(backend, name, holder=holder, on_turn=on_turn)
        while not await backend.is_settled(record):  # noqa: ASYNC110  no watch tells of all that may be left
            await asyncio.sleep(_LOOK)

    try:
        await asyncio.wait_for(to_the_end(), timeout)
    except asyncio.TimeoutError:
        raise BackendError(
            f"job {name} still exists after {timeout:g} s; the deletion request stays active, and the next supervisor "
            "completes the deletion"
        ) from None
    return True
