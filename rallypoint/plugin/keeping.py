"""What a task keeps of its job's page, as an XCom, for when the job itself is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rallypoint.plugin.values import Page
from rallypoint.plugin.view import as_of, keepsake, page_of
from rallypoint.wire import codec

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["LIMIT", "kept_page"]

#: Bytes of JSON that a task keeps at the most.
LIMIT = 48 * 1024

#: What a larger page is kept without, in this order; of incidents and story the newest stay.
_LEAST_USEFUL = ("nodes", "curves", "story", "faults")
_FEW = 20


async def kept_page(backend: Backend, name: str, *, tries: Mapping[str, int], place: str) -> dict[str, Any] | None:
    """Return the page of a job as plain JSON, None where there is no such job. Raises `BackendError`.

    It holds nothing of what the script wrote to its log but the one line of each error.
    """
    stored = await backend.load(name)
    if stored is None:
        return None
    status = await backend.status(name)
    record = stored.record
    told = _json(keepsake(page_of(record, status, now=as_of(record, status), tries=tries, label=place)))
    for part in _LEAST_USEFUL:
        if len(json.dumps(told)) <= LIMIT:
            break
        told[part] = told[part][-_FEW:] if part in {"faults", "story"} else []
    return told


def _json(page: Page) -> dict[str, Any]:
    told: dict[str, Any] = codec.to_json(page)
    return told
