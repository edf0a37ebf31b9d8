"""Work of a deferred task's trigger: supervision of the job, and its deletion if the task was stopped.

Importing this takes half a second, so the trigger imports it in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any, Protocol

from rallypoint.backends.contract import Backend
from rallypoint.provider.claim import Claim, End, Ending
from rallypoint.provider.conduct import Post, cancel, conduct, is_local
from rallypoint.provider.publishing import Publication, publish_interval
from rallypoint.provider.task_state import may_cancel
from rallypoint.provider.task_xcom import XComBookmark, write_xcom
from rallypoint.report.page.published import PAGE_KEY
from rallypoint.wire.errors import RallypointError

__all__ = ["Deferred", "attend", "give_up", "publication_of"]


class Deferred(Protocol):
    """The trigger of a deferred task, which supervises the job of `claim`."""

    claim: Claim
    task_instance: Any

    @property
    def log(self) -> Any:
        """Logs for the task."""

    def open_backend(self) -> Backend:
        """Return the backend of the job. Blocks; called in a thread."""

    def spawn_supervisor(self, claim: Claim) -> None:
        """Start a supervisor that continues without the triggerer. Blocks; called in a thread."""

    async def ask_state(self) -> str | None:
        """Return the present state of the task that waits for this trigger."""


async def attend(trigger: Deferred) -> Ending:
    """Supervise the job of a trigger to its end; raises only when the trigger is cancelled."""
    ending, claim = None, trigger.claim
    try:
        async with _post(trigger) as post:
            ending = await conduct(post)
    except Exception as error:
        if ending is not None:  # only closing the backend failed
            trigger.log.warning(
                "Cannot close the connection to the backend of job %s: %s; the job is not affected", claim.name, error
            )
            return ending
        known = isinstance(error, (OSError, RallypointError))
        if not known:
            trigger.log.exception("The supervision of job %s failed; the traceback follows", claim.name)
        text = str(error) if known else f"supervision of job {claim.name} failed: {type(error).__name__}: {error}"
        return Ending(end=End.ERROR, name=claim.name, text=text, local_failure=is_local(error))
    else:
        return ending


async def give_up(trigger: Deferred) -> None:
    """Delete the job if its task was stopped."""
    state = await trigger.ask_state()
    if not may_cancel(state):
        trigger.log.info("Job %s continues, because its Airflow task is in state %r", trigger.claim.name, state)
        return
    async with _post(trigger) as post:
        if await cancel(post):
            trigger.log.info("Deleting job %s, because its Airflow task is in state %r", trigger.claim.name, state)


@contextlib.asynccontextmanager
async def _post(trigger: Deferred) -> AsyncIterator[Post]:
    # In a thread, because opening a backend imports modules, which would block other triggers.
    backend = await asyncio.to_thread(trigger.open_backend)
    try:
        ti = trigger.task_instance
        yield Post(
            claim=trigger.claim,
            backend=backend,
            spawn=trigger.spawn_supervisor,
            log=trigger.log,
            bookmark=None if ti is None else XComBookmark(ti=ti),
            publication=publication_of(trigger),
        )
    finally:
        await backend.close()


def publication_of(trigger: Deferred) -> Publication | None:
    """Return the publisher of the page of a trigger's job; None if it is not published."""
    ti, claim = trigger.task_instance, trigger.claim
    if ti is None or not claim.publish:
        return None
    return Publication(
        write=functools.partial(write_xcom, ti, PAGE_KEY),
        interval=publish_interval(),
        owner=claim.owner,
        number=claim.try_number,
        place=claim.backend,
    )
