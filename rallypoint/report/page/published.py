"""The page of a job as its task publishes it: an XCom, for an API server that does not read the job itself, and for later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rallypoint.report.page.roles import roles_as_of, roles_page
from rallypoint.report.page.values import Page
from rallypoint.report.page.view import as_of, keepsake, page_of
from rallypoint.report.roles import read_roles
from rallypoint.supervision.masking import masked_status
from rallypoint.wire import codec
from rallypoint.wire.masked import mask_of_plan

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["LIMIT", "PAGE_KEY", "published_page"]

#: The XCom.
PAGE_KEY = "rallypoint_page"

#: Maximum bytes of JSON that a task publishes.
LIMIT = 48 * 1024

#: Parts that are omitted from a larger page, in this order; the newest incidents and entries are kept.
_LEAST_USEFUL = ("nodes", "curves", "story", "faults", "roles")
_FEW = 20

#: Maximum items of a part.
_MANY = 4000


async def published_page(
    backend: Backend, name: str, *, tries: Mapping[str, int], place: str, live: bool = False
) -> dict[str, Any] | None:
    """Return the page of a job as plain JSON; None if the job does not exist. Raises `BackendError`.

    It contains no log lines of the script except one line of each error.

    Args:
        backend: of the job.
        name: of the job.
        tries: number of the task's try, by its id.
        place: where the job is, in words.
        live: the job runs, and a newer page will follow; otherwise this is the final page.
    """
    stored = await backend.load(name)
    if stored is None:
        return None
    status = await backend.status(name)
    roles = await read_roles(backend, stored.record, stored.plan)

    def made() -> dict[str, Any]:
        if stored.plan.roles:
            now = roles_as_of(stored.record, roles)
            page = roles_page(stored.record, stored.plan, roles, now=now, tries=tries, label=place)
        else:
            shown = None if status is None else masked_status(status, mask_of_plan(stored.plan))
            page = page_of(stored.record, shown, now=as_of(stored.record, status), tries=tries, label=place)
        return _bounded(page, live=live)

    # In a thread: a record of megabytes takes long, and other triggers share the event loop.
    return await asyncio.to_thread(made)


def _bounded(page: Page, *, live: bool) -> dict[str, Any]:
    told = _json(keepsake(page, live=live and page.live))
    for role in told["roles"] if len(json.dumps(told)) > LIMIT else ():
        role.update(nodes=[], curves=[], instances=role["instances"][:_FEW], faults=role["faults"][-_FEW:])
    for part in _LEAST_USEFUL:
        if len(told[part]) > _MANY or len(json.dumps(told)) > LIMIT:
            told[part] = told[part][-_FEW:] if part in {"faults", "story"} else []
    return told


def _json(page: Page) -> dict[str, Any]:
    told: dict[str, Any] = codec.to_json(page)
    return told
