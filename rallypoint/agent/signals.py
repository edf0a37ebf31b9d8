"""The signals that end an agent, and signals to the process groups that it started."""

from __future__ import annotations

import os
import signal

from rallypoint.agent.errors import UsageError

__all__ = ["SIGNALS", "parse_signals", "signal_group"]

#: Where nobody says otherwise: torchrun's.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

#: They cannot be caught, or mean something else to the agent: the end of a child, a broken pipe, its own timers.
_NOT = {"SIGKILL", "SIGSTOP", "SIGCHLD", "SIGCLD", "SIGPIPE", "SIGCONT"}


def parse_signals(text: str) -> tuple[signal.Signals, ...]:
    """Return the signals in `SIGTERM,SIGUSR1,...`; raises `UsageError`."""
    found: list[signal.Signals] = []
    for name in (part.strip() for part in text.split(",")):
        if name in _NOT or name not in signal.Signals.__members__:
            allowed = "signals that can be caught, such as SIGTERM,SIGUSR1"
            raise UsageError(f"--signals-to-handle {name or text!r}: not allowed; expected {allowed}")
        found.append(signal.Signals[name])
    return tuple(dict.fromkeys(found))


def signal_group(group: int, number: signal.Signals) -> bool:
    """Send a signal to a process group; return whether a process of it could receive the signal.

    False for a group id below 2: to the kernel, 0 is the group of this process, and -1 is every process.
    """
    if group <= 1:
        return False
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # PermissionError: all that is left of it runs as another user
        return False
    return True
