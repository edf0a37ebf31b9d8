"""`python -m rallypoint.training.function NAME DIGEST`: a worker of a job that is a function.

It reads the file that RALLYPOINT_FUNCTION_FILE names, calls the function on this rank, and on rank 0 leaves what it returns as
the job's result.
"""

from __future__ import annotations

import base64
import importlib
import os
import pickle
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rallypoint.training.result import report_result
from rallypoint.wire import codec, env
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.function import SentFunction
from rallypoint.wire.python import find_in_current_folder

__all__ = ["FunctionError", "call", "load", "main", "read", "read_private"]


class FunctionError(RallypointError):
    """The function cannot be run here; the text says why and what to do."""


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run the function that the arguments name."""
    if len(arguments) != 2:
        raise FunctionError(
            f"arguments: {list(arguments)} is not allowed; expected the name and the digest of the job's function"
        )
    name, digest = arguments
    path = environ.get(env.FUNCTION_FILE)
    if not path:
        raise FunctionError(f"{env.FUNCTION_FILE}: not set; functions run only in workers started by a job's agent")
    sent = read(Path(path))
    if sent.digest != digest:
        raise FunctionError(f"{path}: holds {sent.name} ({sent.digest}); expected {name} ({digest})")
    value = call(sent)
    if environ.get("RANK") == "0":
        report_result(value)


def read(path: Path) -> SentFunction:
    """Read the file of a function; raises `FunctionError` as `read_private` does."""
    return codec.loads(SentFunction, read_private(path))


def read_private(path: Path) -> bytes:
    """Read a file; raises `FunctionError` for one that somebody else may have written, before anything of it is unpickled."""
    try:
        with path.open("rb") as file:
            told = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        raise FunctionError(f"cannot read the pickled function in {path}: {error.strerror}") from error
    if told.st_uid not in (0, os.geteuid()) or told.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.filemode(told.st_mode)
        raise FunctionError(
            f"{path}: owner {told.st_uid} with mode {mode} is not allowed; expected root or uid {os.geteuid()} as owner, and "
            "no write access for others"
        )
    return content


def load(sent: SentFunction) -> Any:
    """Unpickle the function; raises `FunctionError` where this Python cannot."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if sent.python != ours:
        raise FunctionError(
            f"function {sent.name}: pickled with Python {sent.python}, but the image has Python {ours}; use an image "
            "with the Python version of the Airflow worker, or a script as entrypoint"
        )
    try:
        importlib.import_module("cloudpickle")
    except ImportError as error:
        raise FunctionError(f"function {sent.name}: cloudpickle is missing in the image; pip install cloudpickle") from error
    try:
        return pickle.loads(base64.b64decode(sent.pickled))  # noqa: S301  its writer is who submitted the job
    except ImportError as error:
        raise FunctionError(
            f"function {sent.name}: {error}; install the missing module in the image. The job contains only the module that "
            "defines the function, not the modules that it imports"
        ) from error


def call(sent: SentFunction) -> Any:
    """Call the function with its arguments."""
    return load(sent)(*sent.args, **sent.kwargs)


if __name__ == "__main__":
    find_in_current_folder()
    main(sys.argv[1:], os.environ)
