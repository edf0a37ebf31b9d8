"""The job's story as lines of a log: one for each event, for people at a terminal or for programs.

A coordinator of its own writes JSON, one object to a line and nothing else on it, so that whatever collects logs can read it;
`rallypoint-agent run`, whose terminal somebody reads, writes a sentence. The keys are the same in every line and stay.
"""

from __future__ import annotations

import datetime
import logging
import sys
from collections.abc import Callable, Iterator

from rallypoint.agent.rendezvous.core import State
from rallypoint.wire import sanitize
from rallypoint.wire.status import Event

__all__ = ["KEYS", "Teller", "begin", "in_words", "line_of", "new_events", "structured"]

log = logging.getLogger("rallypoint.coordinator")
_lines = logging.getLogger("rallypoint.events")

#: Of every line, in this order (docs/guides/metrics.md).
KEYS = ("time", "event", "detail", "job", "uid", "attempt", "term", "round", "nodes", "ranks", "state")

#: Kinds of events about a hang that is not confirmed.
_DOUBTS = frozenset({"hang-doubt", "hang-over"})

#: How the line of an event starts in a log for people, where that is not the kind of the event.
_TITLES = {
    "coordinator": "coordinator ",
    "round": "started ",
    "first-step": "training started: ",
    "regroup": "restarting workers: ",
    "resumed": "training resumed: ",
    "succeeded": "job succeeded: ",
    "failed": "job failed: ",
    "sent-away": "replacing a node: ",
    "resized": "job resized: ",
    "prepares": "new node: ",
    "unready": "new node: ",
    "fenced": "",
    "awaiting": "",
    "training-ports": "training ports: ",
    "dump": "",
    "hang": "hang detected: ",
    "straggler": "",
    "straggler-over": "",
    "node-check": "",
    "tuned": "",
    "worker-command": "worker command: ",
}

Teller = Callable[[State, Event], None]


def new_events(before: State, after: State) -> Iterator[Event]:
    """Yield what was added to the story between two states, in its order."""
    if after.events is before.events:
        return
    known = set(map(id, before.events))
    yield from (event for event in after.events if id(event) not in known)


def in_words(_: State, event: Event) -> None:
    """Log an event for people. A suspected hang is logged at DEBUG; a confirmed one is an incident of its own."""
    level = logging.DEBUG if event.kind in _DOUBTS else logging.INFO
    log.log(level, "%s%s", _TITLES.get(event.kind, f"{event.kind}: "), sanitize.clean_text(event.detail))


def structured(state: State, event: Event) -> None:
    """Log an event for programs; `begin` says where to."""
    _lines.info("%s", line_of(state, event))


def line_of(state: State, event: Event) -> str:
    """Return an event as JSON; `nodes`, `ranks` and `state` are those of the job right after it."""
    at = datetime.datetime.fromtimestamp(event.at, datetime.timezone.utc)
    values = (
        at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        event.kind,
        event.detail,
        state.job,
        state.uid,
        state.fence.attempt,
        state.fence.term,
        event.round,
        len(state.world),
        sum(member.local_world_size for member in state.world),
        state.state.value,
    )
    return sanitize.dumps(dict(zip(KEYS, values, strict=True)))


def begin() -> None:
    """Let the lines go to stderr as they are, whatever other lines look like. Does nothing the second time."""
    if _lines.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _lines.addHandler(handler)
    _lines.propagate = False
