"""A function that `launch_agent` was called with: how it lies in the agent's folder for the workers, and what they leave there.

The folder belongs to the user who called, and nobody else may enter it; nothing of it is ever sent to another machine.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARGUMENTS", "LAUNCHED_MODULE", "PICKLE", "SentCall", "return_file"]

#: What each worker runs, as `python -m`; its argument is the folder.
LAUNCHED_MODULE = "rallypoint.training.launched"

#: The files of the folder: a `SentCall`, and the function with its arguments.
ARGUMENTS, PICKLE = "call.json", "call.pickle"


@dataclass(frozen=True, kw_only=True)
class SentCall:
    """What must be known before the pickle is read.

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
