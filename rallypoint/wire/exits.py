"""Exit codes of the coordinator and the node agent, the same on every backend; and how a process exited, in words."""

from __future__ import annotations

import enum
import signal

__all__ = ["Exit", "describe_exit", "signal_name"]


class Exit(enum.IntEnum):
    """How a coordinator or an agent ended by itself."""

    OK = 0  #: the job succeeded
    JOB_FAILED = 1  #: the job's attempt failed; the verdict says why
    USAGE = 2  #: wrong arguments
    STALE = 3  #: it belongs to the past: replaced, reset, or of a lower term
    LOST_CONTACT = 4  #: it reached no coordinator for `fence_timeout` and stopped its workers
    ELSEWHERE = 5  #: the verdict on one of its workers was that another node must try: it left to be replaced
    ORPHANED = 6  #: nobody supervised the job for its lease, no coordinator was there to say so, and the orphan policy is stop
    CONFIG = 78  #: it cannot work as it is (port in use, folder not writable, disk full); trying again will not help


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; `signal 35` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(code: int) -> str:
    """Return `killed by SIGKILL` or `exited with code 1` for a return code as of `subprocess`, negative for a signal."""
    return f"killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
