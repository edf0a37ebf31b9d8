"""`python -m rallypoint.training.launched FOLDER`: a worker of `launch_agent`, called with a function.

It calls the function that lies in the folder, and leaves there what it returns. An exception is recorded as torch's `@record`
records it, so that whoever called `launch_agent` reads the traceback of the rank that failed.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rallypoint.training.function import FunctionError, read_private
from rallypoint.training.startup.tracebacks import hide
from rallypoint.wire import codec, env
from rallypoint.wire.function import ARGUMENTS, PICKLE, SentCall, return_file
from rallypoint.wire.private import replace_file

__all__ = ["main"]

#: Stands for the local rank in arguments that are strings, as in torch's.
_LOCAL_RANK_MACRO = "${local_rank}"


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Call the function of the folder that is the only argument; raises what it raises."""
    if len(arguments) != 1:
        raise FunctionError(f"arguments: {list(arguments)} is not allowed; expected one folder with the pickled function")
    folder = Path(arguments[0])
    try:
        value = _call(folder, environ.get("LOCAL_RANK", "0"))
        _leave(folder / return_file(int(environ.get(env.ROUND, "0")), int(environ.get("RANK", "0"))), value)
    except Exception as error:
        hide(error)
        _record(environ.get("TORCHELASTIC_ERROR_FILE", ""), error)
        raise


def _call(folder: Path, local_rank: str) -> Any:
    sent = codec.loads(SentCall, read_private(folder / ARGUMENTS))
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if sent.python != ours:
        raise FunctionError(
            f"function {sent.name}: pickled with Python {sent.python}, but this worker runs Python {ours}; "
            "expected the same version"
        )
    sys.path[:] = sent.sys_path
    # What was imported before the path was known stays; what is found by it from here on must be looked up anew.
    importlib.invalidate_caches()
    function, args = pickle.loads(read_private(folder / PICKLE))  # noqa: S301  its writer is who called launch_agent
    return function(*(arg.replace(_LOCAL_RANK_MACRO, local_rank) if isinstance(arg, str) else arg for arg in args))


def _leave(path: Path, value: Any) -> None:
    """Write what the function returned; whole or not at all."""
    try:
        import cloudpickle  # noqa: PLC0415  an extra
    except ImportError:
        cloudpickle = pickle
    try:
        pickled = cloudpickle.dumps(value)
    except Exception as error:
        kind = type(value).__name__
        raise FunctionError(f"the return value (a {kind}) cannot be pickled: {type(error).__name__}: {error}") from error
    replace_file(path, pickled)


def _record(path: str, error: Exception) -> None:
    """Write torch's error file, unless the function has recorded its own error there."""
    if not path or Path(path).exists():
        return
    told = {"py_callstack": "".join(traceback.format_exception(error)), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": told}
    try:
        Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
    except OSError as trouble:
        sys.stderr.write(f"{path}: cannot record the error: {trouble.strerror}\n")


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
