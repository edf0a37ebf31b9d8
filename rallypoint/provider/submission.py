"""Work of a task in the worker: submit or adopt the job, wait for it, and take its result."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from rallypoint.backends.contract import Blueprint, JobNotFoundError
from rallypoint.backends.requests import Adoption, collect, delete, note_tries, submit_or_adopt
from rallypoint.job import ElasticJob
from rallypoint.job.errors import redacting
from rallypoint.job.secret_env import env_warnings
from rallypoint.provider.claim import End, Ending
from rallypoint.provider.conduct import Post, cancel, conclude, conduct
from rallypoint.provider.failure import advised, cannot_grow
from rallypoint.provider.function import FunctionJob
from rallypoint.provider.manifest import Manifest
from rallypoint.provider.redaction import redacted
from rallypoint.provider.task_state import CLEARED, Bell, may_cancel
from rallypoint.report.story import story_of
from rallypoint.report.summary import summarize
from rallypoint.supervision.record import Advice, JobRecord
from rallypoint.wire.env import MASKED
from rallypoint.wire.masked import mask_spec, secrets_in

__all__ = ["Advise", "Ask", "Work", "no_growth", "settle", "submit", "submit_and_leave", "submit_and_wait", "tidy"]

#: What is submitted.
Work: TypeAlias = ElasticJob | FunctionJob | Manifest

#: Asks Airflow for the task's state.
Ask = Callable[[], Awaitable["str | None"]]

#: What a record says of tries before anybody noted them, and after a running task was cleared.
UNKNOWN_TRIES, CLEARED_TRIES = -1, -2

#: Decides what a next try is to do otherwise, by what was decided before.
Advise = Callable[[Advice], Advice]


async def submit(post: Post, work: Work) -> Ending | None:
    """Submit the job or adopt that of an earlier try; return its ending if it has already ended, else None."""
    record = (await _submit(post, work)).stored.record
    return await conclude(post.backend, record) if record.released else None


async def submit_and_leave(post: Post, work: Work) -> dict[str, Any]:
    """Submit or adopt the job, start a separate supervisor, and return the present summary."""
    record = (await _submit(post, work)).stored.record
    if not record.released:
        await post.hand_over()
    return summarize(story_of(record, await post.backend.status(work.name), now=record.last_now))


async def submit_and_wait(post: Post, work: Work, *, bell: Bell, ask: Ask) -> Ending:
    """Submit or adopt the job and supervise it to its end; after SIGTERM, cancel it if the task was stopped."""
    ending = await submit(post, work)
    if ending is not None:
        return ending
    with bell.listening() as rung:
        listening = asyncio.create_task(_heed(post, rung, ask))
        try:
            return await conduct(post)
        finally:
            listening.cancel()
            await asyncio.wait({listening})


async def no_growth(post: Post, work: Work, *, factor: float, limit: str) -> str:
    """Return why a next try cannot have more memory than the last had, in words; "" where it can."""
    if isinstance(work, Manifest):
        return "the author of a manifest sets its resources"
    stored = await post.backend.load(work.name)
    job = work.job if isinstance(work, FunctionJob) else work
    return cannot_grow(job, Advice() if stored is None else stored.record.advice, factor=factor, limit=limit)


async def settle(post: Post, ending: Ending, *, on_finish_action: str, advise: Advise | None = None) -> None:
    """Take the result of a finished job, so that a next try starts it again; delete one that failed and is not to be kept.

    One that succeeded is deleted by `tidy`, when Airflow has heard of it: a process that is killed before would have it trained
    again.

    `advise` decides what a next try is to do otherwise; a job whose record holds such advice is kept for it.

    Does nothing when the job belongs to another try by now, or is gone.
    """
    owner = post.claim.owner
    try:
        record = await collect(post.backend, ending.name, owner=owner, if_owned=True, advise=advise)
        if record.owner != owner:
            post.log.info("Job %s now belongs to %s; this task does not change the job", ending.name, record.owner)
        elif advise is not None and record.advice != Advice():
            post.log.info(
                "Job %s is kept, because the next try of the task starts the job again with other settings", ending.name
            )
        elif on_finish_action == "delete_job" and ending.end is not End.SUCCEEDED:
            await delete(post.backend, ending.name, holder=post.holder, owner=owner)
    except JobNotFoundError:
        post.log.info("Job %s was already deleted", ending.name)


async def tidy(post: Post) -> None:
    """Delete the finished job, unless it belongs to another try by now, or is gone."""
    try:
        await delete(post.backend, post.claim.name, holder=post.holder, owner=post.claim.owner)
    except JobNotFoundError:
        post.log.info("Job %s was already deleted", post.claim.name)


async def _submit(post: Post, work: Work) -> Adoption:
    owner, stored = post.claim.owner, await post.backend.load(work.name)
    before = None if stored is None else stored.record
    fresh = before is not None and before.owner != owner and _begins_anew(post, before)
    if shown := _unmasked_arguments(work):
        post.log.warning("%s", shown)
    work = _masked(work if before is None else _advised(work, before.advice))
    kept = before is not None and _was_not_told(post, before)
    with redacting(redacted):
        blueprint = dataclasses.replace(_draw(post, work), claimant=post.claimant)
    for warning in env_warnings(blueprint.job):
        post.log.warning("%s", warning)
    adoption = await submit_or_adopt(post.backend, blueprint, owner=owner, fresh=fresh, kept=kept)
    if adoption.stored.record.tries != post.tries:
        await note_tries(post.backend, work.name, owner=owner, tries=post.tries)
    post.log.info("Job %s (%s): %s", work.name, adoption.stored.record.uid, adoption.how.value)
    return adoption


def _begins_anew(post: Post, before: JobRecord) -> bool:
    """Return whether a job that runs for another try is ended first: that is asked for, or this task was cleared since."""
    return not post.durable or before.tries not in (UNKNOWN_TRIES, post.tries)


def _was_not_told(post: Post, before: JobRecord) -> bool:
    """Return whether a result that an earlier try took never came to Airflow: this one is its retry, and no clear's.

    A process may be killed, or a scheduler that comes back may take its task for an orphan, after it took the result.
    """
    return post.durable and before.tries == post.tries != UNKNOWN_TRIES


def _advised(work: Work, advice: Advice) -> Work:
    if isinstance(work, FunctionJob):
        return dataclasses.replace(work, job=advised(work.job, advice))
    return advised(work, advice) if isinstance(work, ElasticJob) else work


def _masked(work: Work) -> Work:
    """Return the job with a note of where the values are that Airflow masks; a manifest stays as it is (see `_draw`)."""
    if isinstance(work, FunctionJob):
        return dataclasses.replace(work, job=_with_mask(work.job))
    return _with_mask(work) if isinstance(work, ElasticJob) else work


def _with_mask(job: ElasticJob) -> ElasticJob:
    roles = []
    for role in job.roles:
        spec = mask_spec(role.env, (*role.entrypoint.words[1:], *role.args), redacted)
        roles.append(role.model_copy(update={"env": {**role.env, MASKED: spec}}) if spec else role)
    return job.model_copy(update={"roles": tuple(roles)})


def _unmasked_arguments(work: Work) -> str:
    """Return a warning about arguments of a function that Airflow masks and agents cannot: they are sent pickled."""
    if not isinstance(work, FunctionJob):
        return ""
    sent = work.function
    args = [f"argument {place}" for place, value in enumerate(sent.args) if redacted("", value) != str(value)]
    kwargs = [f"argument {name}" for name, value in sent.kwargs.items() if redacted(name, value) != str(value)]
    if not (args or kwargs):
        return ""
    return (
        f"function {sent.name}: {', '.join((*args, *kwargs))}: Airflow masks this value, but Rallypoint does not mask "
        "arguments of a function. If the function prints this value, the tab, XComs and the log of a deferred task show it. "
        "Pass this value in `env` instead"
    )


def _draw(post: Post, work: Work) -> Blueprint:
    if isinstance(work, ElasticJob):
        return post.backend.plan(work, orphan_policy=post.orphan_policy)
    if isinstance(work, FunctionJob):
        return dataclasses.replace(post.backend.plan(work.job, orphan_policy=post.orphan_policy), function=work.text)
    # Only a cluster takes manifests; its backend is what the operator has opened for one.
    backend: Any = post.backend
    hidden = secrets_in(_texts(work.manifest), redacted)
    drawn: Blueprint = backend.plan_manifest(work.manifest, kind=work.kind, orphan_policy=post.orphan_policy, hidden=hidden)
    return drawn


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of a manifest, those of an environment with the names of their variables."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        named = value.get("name")
        for key, inner in value.items():
            yield from _texts(inner, named if key == "value" and isinstance(named, str) else "")
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


async def _heed(post: Post, rung: asyncio.Event, ask: Ask) -> None:
    name = post.claim.name
    while True:
        await rung.wait()
        rung.clear()
        try:
            state = await ask()
        except Exception:
            post.log.exception(
                "Cannot read the state of this task from Airflow, so job %s continues; the traceback follows", name
            )
            continue
        if state == CLEARED:
            await _note_cleared(post)
        if not may_cancel(state):
            post.log.warning(
                "The process of this task was asked to stop, but the task is in state %r, so job %s continues; the next try of "
                "the task supervises the job again",
                state,
                name,
            )
            continue
        try:
            if await cancel(post):
                post.log.info("Deleting job %s, because its Airflow task is in state %r", name, state)
        except Exception:
            post.log.exception(
                "The Airflow task of job %s is in state %r, so the job should be deleted, but the request failed; the "
                "traceback follows",
                name,
                state,
            )


async def _note_cleared(post: Post) -> None:
    """Let the next try know that it is no retry: Airflow changes nothing else of a task that is cleared while it runs."""
    try:
        await note_tries(post.backend, post.claim.name, owner=post.claim.owner, tries=CLEARED_TRIES)
    except Exception:
        post.log.exception(
            "Cannot record that the task was cleared, so the next try may continue job %s instead of starting a new attempt; "
            "the traceback follows",
            post.claim.name,
        )
