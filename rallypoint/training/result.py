"""The job's result, left in a file for the agent to tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rallypoint.wire import env
from rallypoint.wire.bounds import read_count
from rallypoint.wire.private import replace_file
from rallypoint.wire.result import RESULT_LIMIT, result_text

__all__ = ["report_result"]


def report_result(value: Any) -> None:
    """Say what the job's result is: a JSON value of at most 48 KiB; call it on every rank, that of rank 0 counts.

    It is told when all ranks have ended well; a later call takes the place of an earlier one. Outside a Rallypoint worker the
    value is checked and nothing else happens. In a pod of a simple role it may have less than 4 KiB, because it is the
    termination message of the container.

    Raises:
        WireError: the value is too large, or JSON cannot hold it; it is also a `ValueError`.
        OSError: the file cannot be written.

    """
    path, limit = os.environ.get(env.RESULT_FILE), read_count(os.environ.get(env.RESULT_LIMIT, ""), RESULT_LIMIT)
    text = result_text(value, limit=RESULT_LIMIT if limit is None else limit)
    if path and limit is not None:
        Path(path).write_text(text, encoding="utf-8")
    elif path:
        replace_file(Path(path), text)
