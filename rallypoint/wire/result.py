"""The result of a job: one JSON value that rank 0 leaves, and that travels with its agent's report into the job's record.

It is for small facts (an accuracy, a path), which a task hands to the next one. What is larger belongs beside the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rallypoint.wire import sanitize
from rallypoint.wire.codec import WireError

__all__ = ["RESULT_LIMIT", "TERMINATION_LOG", "arguments_text", "read_result", "result_text"]

#: File in which the kubelet finds the termination message of a container.
TERMINATION_LOG = "/dev/termination-log"

#: Bytes of JSON text. Status and record hold it beside everything else, and Airflow's XCom is a row of a database.
RESULT_LIMIT = 48 * 1024

#: Levels that it may have; less than what anything may have that it becomes a part of.
_DEPTH = sanitize.DEPTH_LIMIT - 8

_WAY_OUT = "save larger values with the checkpoint, and use the path as the value"


def result_text(value: Any, *, limit: int = RESULT_LIMIT) -> str:
    """Return a result as JSON text; raises `WireError` for one that JSON has no type for, and for one that is too large.

    `limit` is in bytes, at most `RESULT_LIMIT`.

    A training is over when its result is reported: a number or a text that not every reader accepts does not fail it, but is
    replaced as `rallypoint.wire.sanitize` says.
    """
    return _bounded(lambda: sanitize.dumps(json.loads(json.dumps(value)), depth=_DEPTH), value, "result", limit)


def arguments_text(value: Any) -> str:
    """Return the arguments of a function as JSON text; raises `WireError` for what JSON cannot hold exactly, or too much."""
    return _bounded(lambda: json.dumps(value, ensure_ascii=False, allow_nan=False), value, "arguments of the function")


def _bounded(write: Callable[[], str], value: Any, what: str, limit: int = RESULT_LIMIT) -> str:
    try:
        text = write()
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(
            what,
            type(value).__name__,
            f"a JSON value ({error}); save other objects with the checkpoint, and use the path as the value",
        ) from error
    if size > limit:
        unit = " (48 KiB)" if limit == RESULT_LIMIT else " in a pod of this role"
        raise WireError(what, f"{size} bytes of JSON", f"at most {limit} bytes{unit}; {_WAY_OUT}")
    return text


def read_result(text: bytes) -> Any:
    """Return the value of such a text; raises `WireError` where it is none, or too large."""
    if len(text) > RESULT_LIMIT:
        raise WireError("result", f"{len(text)} bytes of JSON", f"at most {RESULT_LIMIT} bytes (48 KiB); {_WAY_OUT}")
    try:
        return sanitize.clean(sanitize.parse(text), depth=_DEPTH)
    except ValueError as error:
        raise WireError("result", text[:80], f"JSON text ({error})") from error
