"""The line between an agent and each of its workers: who can do what, leave a broken world, take a place in the next.

A Unix stream socket in the agent's folder, which RALLYPOINT_LINE names; one JSON object a line, both ways. The worker connects
and says :class:`Hello` first. A worker that never says it is a plain script: it is restarted after a fault.

What is said names the round that it is about. Whoever hears of a round that is over passes it by: the two sides speak at the
same time, and neither waits for an answer.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.wire.bounds import PID, WHOLE
from rallypoint.wire.codec import WireError, from_json, to_json
from rallypoint.wire.sanitize import parse

__all__ = [
    "MAX_LINE",
    "Ability",
    "Assign",
    "Done",
    "Failed",
    "Freed",
    "FromAgent",
    "FromWorker",
    "Hello",
    "Leave",
    "Order",
    "Regrouped",
    "Verb",
    "read_from_agent",
    "read_from_worker",
    "write",
]

#: Bytes of the longest line that is read; an environment is the longest that is said.
MAX_LINE = 1 << 20


class Ability(str, enum.Enum):
    """What a worker says that it can do; how the ladder's rungs are called is the supervision's to know."""

    RETRY = "retry"  #: run the step again that raised
    IN_PLACE = "recover-in-place"  #: leave a broken world alive and take a place in the next
    RESIZE = "elastic-training"  #: the same, where the next world has another size
    PAUSE = "pause"  #: stand still at a step boundary, and go on
    SAVE = "save"  #: write a checkpoint at a step boundary
    STOP = "stop"  #: save and end well at a step boundary, without SIGTERM
    DUMP = "dump"  #: write one although the world is broken


class Verb(str, enum.Enum):
    """What an agent can ask of a worker at the next step boundary, each at most once at a time."""

    PAUSE = "pause"
    RESUME = "resume"
    SAVE = "save"
    STOP = "stop"  #: save where that can be, then end well
    DUMP = "dump"


# --- What a worker says ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first word. `rank` is its number in the world of `round`; `abilities` replace those of an earlier hello.

    `why` says, for people, what keeps it from recovering in place where it cannot.
    """

    limits: ClassVar = {"pid": PID}

    reported: ClassVar[bool] = True

    rank: int
    local_rank: int
    round: int
    pid: int
    abilities: tuple[Ability, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Freed:
    """It has left the world of `round` and waits for a place in another. `step`: its last committed one."""

    limits: ClassVar = {"step": WHOLE}

    reported: ClassVar[bool] = True

    round: int
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A step of it raised, it lives, and it asks for a new round in which nobody is replaced."""

    limits: ClassVar = {"step": WHOLE}

    reported: ClassVar[bool] = True

    round: int
    error: str
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Regrouped:
    """It trains in `round` from the state after `step` steps."""

    limits: ClassVar = {"step": WHOLE}

    reported: ClassVar[bool] = True

    round: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Done:
    """It has done what order `number` asks, at the boundary after `step` steps; `error` where it could not."""

    limits: ClassVar = {"step": WHOLE}

    reported: ClassVar[bool] = True

    verb: Verb
    number: int = 0
    step: int | None = None
    error: str = ""


FromWorker = Hello | Freed | Failed | Regrouped | Done


# --- What its agent says ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Leave the world of `round`, now; a collective of it may never end."""

    round: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Assign:
    """Its place in `round`: `environment` is set, `unset` is removed, and its streams go to the files that are named."""

    round: int
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    unset: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Do what `verb` says at the next step boundary that all ranks have in common; `number` is the same on all of them."""

    verb: Verb
    number: int = 0


FromAgent = Leave | Assign | Order

_WORKER: dict[str, type[Any]] = {
    "hello": Hello,
    "freed": Freed,
    "failed": Failed,
    "regrouped": Regrouped,
    "done": Done,
}
_AGENT: dict[str, type[Any]] = {"leave": Leave, "assign": Assign, "order": Order}
_KINDS = {cls: kind for words in (_WORKER, _AGENT) for kind, cls in words.items()}


def write(word: FromWorker | FromAgent) -> bytes:
    """Return a word as it goes over the line."""
    return json.dumps({"kind": _KINDS[type(word)], **to_json(word)}, allow_nan=False).encode() + b"\n"


def read_from_worker(line: bytes) -> FromWorker:
    """Read what a worker says; raises `WireError`, since a worker is the user's code."""
    word: FromWorker = _read(line, _WORKER)
    return word


def read_from_agent(line: bytes) -> FromAgent:
    """Read what an agent says; raises `WireError`."""
    word: FromAgent = _read(line, _AGENT)
    return word


def _read(line: bytes, words: dict[str, type[Any]]) -> Any:
    try:
        data = parse(line)
    except ValueError as error:
        raise WireError("message between agent and worker", line[:80], "a JSON object") from error
    if not isinstance(data, dict):
        raise WireError("message between agent and worker", data, "a JSON object")
    kind = data.pop("kind", None)
    cls = words.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise WireError("kind", kind, f"one of {', '.join(words)}")
    return from_json(cls, data)
