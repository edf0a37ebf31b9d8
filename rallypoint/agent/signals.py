"""On which signals an agent leaves. Pure."""

from __future__ import annotations

import signal

from rallypoint.agent.errors import UsageError

__all__ = ["SIGNALS", "parse_signals"]

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
