"""How a process exited, in words."""

from __future__ import annotations

import signal

__all__ = ["describe_exit", "signal_name"]


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; `signal 35` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(code: int) -> str:
    """Return `killed by SIGKILL` or `exited with code 1` for a return code as of `subprocess`, negative for a signal."""
    return f"killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
