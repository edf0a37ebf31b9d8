"""The last check of a trigger event: an event that Airflow cannot store would end the triggerer repeatedly.

The triggerer writes each event to Airflow's database. An event that the database refuses ends the triggerer, and the trigger
passes to the next one. So every event is cleaned and measured here first, and one that still cannot be delivered is replaced.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from typing import Any

from rallypoint.provider.claim import End, Ending
from rallypoint.provider.sensing.finding import Finding, Found
from rallypoint.wire import sanitize

log = logging.getLogger(__name__)

__all__ = ["EVENT_LIMIT", "ending_event", "finding_event"]

#: Bytes of an event's JSON text. Each message between the processes of a triggerer is held in memory several times.
EVENT_LIMIT = 256 * 1024

#: Parts of a summary that a job can make large; an event that is too large is sent without them.
_LARGE = ("result", "metrics", "incidents", "checkpoint")


def ending_event(ending: Ending) -> dict[str, Any]:
    """Return the payload of a trigger's event: the ending, without the parts that are too large, which are marked."""
    return _first_deliverable(_endings(ending))


def finding_event(finding: Finding) -> dict[str, Any]:
    """Return the payload of a sensor's trigger event: the finding, or the reason why it cannot be sent."""
    return _first_deliverable(_findings(finding))


def _endings(ending: Ending) -> Iterator[Any]:
    yield ending
    mark = f"{sanitize.MARK} [not delivered: the trigger event was too large or not valid JSON]"
    reduced = {key: mark if key in _LARGE and ending.summary[key] else ending.summary[key] for key in ending.summary}
    yield dataclasses.replace(ending, summary=reduced, text=sanitize.clean_text(ending.text, 4096))
    # The job itself may be healthy: the next try adopts it, or finds it finished.
    text = f"the trigger could not send the end state of job {sanitize.one_line(str(ending.name), 256)} ({ending.end.value})"
    yield Ending(end=End.ERROR, name=ending.name, text=text, local_failure=True)


def _findings(finding: Finding) -> Iterator[Any]:
    yield finding
    yield dataclasses.replace(finding, values={}, text=sanitize.clean_text(finding.text, 4096))
    yield Finding(found=Found.ERROR, text="the trigger could not send its result")


def _first_deliverable(candidates: Iterator[Any]) -> dict[str, Any]:
    event: dict[str, Any] = {}
    for candidate in candidates:
        try:
            event = candidate.to_event()
            size = len(json.dumps(event, allow_nan=False))
        except Exception as error:  # noqa: BLE001  whatever a value may raise: the next candidate holds less of it
            # Not the error's text: it may raise as well.
            kind = type(error).__name__
            log.warning("The trigger cannot convert the event for its task to JSON (%s); it sends fewer values instead", kind)
            continue
        if size <= EVENT_LIMIT:
            break
    return event
