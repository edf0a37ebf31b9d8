"""A phase that a script tells itself, where what it does cannot be seen from outside.

Waits for a `DataLoader`, `torch.save`, evaluations after `Module.eval` and compilations are seen without a line of the script
(docs/guides/hangs.md). Other work, for example a custom evaluation loop or a checkpoint written by numpy, looks
like a step that takes long; so it may say what it is, and how long that takes is learned by itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

__all__ = ["phase"]

_NAMES = ("data", "checkpoint", "evaluation", "compile")


def phase(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which this worker is in a phase: `data`, `checkpoint`, `evaluation` or `compile`.

    Outside of a job, and where torch is not imported, it does nothing. Raises `ValueError` for another name.
    """
    if name not in _NAMES:
        raise ValueError(f"phase: {name!r} is not allowed; expected one of {', '.join(_NAMES)}")
    return _in_phase(name)


@contextlib.contextmanager
def _in_phase(name: str) -> Iterator[None]:
    pulse = sys.modules.get("_rallypoint_pulse")
    if pulse is None:
        yield
        return
    number = pulse.NAMES[name]
    token = pulse.enter(number)
    try:
        yield
    finally:
        pulse.leave(token, number)
