"""A Python function as the entrypoint of a job: what is sent, and by which words a plan says that its job is one.

The function travels as one file, from who submits into the job's own folder (read by its owner alone) or Secret, and from there
into each worker: one trust domain. It is never sent from pod to pod. Unpickling runs code, so whoever may write that file may
run code in the job; a worker refuses one that others may write.

A function that `launch_agent` was called with lies in the agent's folder, and so does what the workers leave there. The folder
belongs to the user who called, and nobody else may enter it; nothing of it is ever sent to another machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rallypoint.wire.plan import Entry, Plan

__all__ = [
    "ARGUMENTS",
    "CALL_MODULE",
    "FUNCTION_LIMIT",
    "FUNCTION_MODULE",
    "LAUNCHED_MODULE",
    "PICKLE",
    "SentCall",
    "SentFunction",
    "function_args",
    "is_function",
    "return_file",
]

#: What each worker runs, as `python -m`; its arguments are those of `function_args`.
FUNCTION_MODULE = "rallypoint.training.function"

#: What each worker runs whose entrypoint is a function of an importable module: `[--process-group] module:name [arguments]`.
CALL_MODULE = "rallypoint.training.call"

#: Bytes of the whole file: a Secret holds 1 MiB, in base64.
FUNCTION_LIMIT = 512 * 1024

#: What each worker runs, as `python -m`; its argument is the folder.
LAUNCHED_MODULE = "rallypoint.training.launched"

#: The files of the folder: a `SentCall`, and the function with its arguments.
ARGUMENTS, PICKLE = "call.json", "call.pickle"


@dataclass(frozen=True, kw_only=True)
class SentFunction:
    """The file.

    Attributes:
        name: of the function, for people; `digest` names its source and its arguments, and is in the plan, too.
        python: version of the Python that pickled it, as `3.11`: code of another one cannot be loaded.
        pickled: by cloudpickle, in base64.
        args, kwargs: JSON values.
    """

    name: str
    digest: str
    python: str
    pickled: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict, hash=False)


def function_args(sent: SentFunction) -> tuple[str, str]:
    """Return the arguments of `FUNCTION_MODULE`: which function it must find."""
    return sent.name, sent.digest


def is_function(plan: Plan) -> bool:
    """Return whether a job is a function, so that its pods need the file."""
    return plan.entry is Entry.MODULE and plan.entrypoint == FUNCTION_MODULE


@dataclass(frozen=True, kw_only=True)
class SentCall:
    """What must be known before the pickle of a call of `launch_agent` is read.

    Attributes:
        name: of the function, for people.
        python: version of the Python that pickled it, as `3.11`.
        sys_path: where the caller finds its modules: the worker finds them there, too.
    """

    name: str
    python: str
    sys_path: tuple[str, ...]


def return_file(round_: int, rank: int) -> str:
    """Return the name of the file with what the function returned on one rank, pickled."""
    return f"return-{round_}-{rank}.pickle"
