"""The ways to hang of tests/live/scripts/hang_ways.py: what each is, and who is to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["KINDS", "Kind", "named"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to hang.

    Attributes:
        name: in the script; `what` is for people.
        culprits: the ranks that the others wait for; empty where no rank is more to blame than another.
        ranks: size of the world, so that who stands alone can be told from who does not.
        begins: it hangs before the first step, or after the last: another bound holds there than between two steps.
        hangs: False for what only looks like a hang.
    """

    name: str
    what: str
    culprits: tuple[int, ...] = (1,)
    ranks: int = 2
    begins: bool = False
    hangs: bool = True


KINDS = (
    Kind(name="sleep", what="one rank sleeps inside a step"),
    Kind(name="stop", what="one rank is stopped (SIGSTOP)"),
    Kind(name="busy", what="one rank runs an endless Python loop, at 100 % of a core"),
    Kind(name="spin", what="one rank calls `time.sleep(0)` in an endless loop"),
    Kind(name="gil", what="one rank runs an endless loop in C and never releases the GIL"),
    Kind(name="regex", what="one rank evaluates a regular expression that backtracks without end"),
    Kind(name="lock-c", what="one rank waits for a lock in a C call, with the GIL released"),
    Kind(name="lock-c-gil", what="one rank waits for a lock in a C call, with the GIL held"),
    Kind(name="lock", what="one rank acquires a Python lock that it already holds"),
    Kind(name="finalizer", what="a finalizer waits for a lock that its own thread holds"),
    Kind(name="queue", what="one rank calls `queue.get` on a queue that stays empty"),
    Kind(name="socket", what="one rank reads from a socket that never receives data"),
    Kind(name="pipe", what="one rank reads from a pipe to which no process writes"),
    Kind(name="fifo", what="one rank opens a file and `open` does not return, as on an NFS server that is down"),
    Kind(name="flock", what="one rank waits for a file lock that is never released"),
    Kind(name="disk", what="one rank waits in the kernel and no signal can interrupt it (state D)"),
    Kind(name="child", what="one rank waits for a child process that never ends"),
    Kind(name="join", what="one rank joins a thread that never ends"),
    Kind(name="future", what="one rank waits for a future whose result is never set"),
    Kind(name="event-loop", what="one rank runs an event loop that receives no event"),
    Kind(name="signal", what="one rank waits for a signal that never arrives"),
    Kind(name="producer", what="one rank reads from a queue whose producer process has ended"),
    Kind(name="debugger", what="one rank stops at a forgotten breakpoint"),
    Kind(name="stdin", what="one rank waits for input on standard input"),
    Kind(name="loader-stuck", what="the data loader's worker process sleeps"),
    Kind(name="loader-stopped", what="the data loader's worker process is stopped (SIGSTOP)"),
    Kind(name="store", what="one rank waits for a `TCPStore` key that no rank sets"),
    Kind(name="hook", what="a hook in the backward pass of one rank does not return"),
    Kind(name="exited", what="one rank has exited with code 0 while the other ranks wait for it"),
    Kind(name="checkpoint", what="rank 0 hangs while it saves a checkpoint", culprits=(0,)),
    Kind(name="evaluation", what="one rank hangs in the evaluation between steps"),
    Kind(name="import", what="one rank hangs while it imports a module", begins=True),
    Kind(name="first-step", what="one rank hangs before its first step", begins=True),
    Kind(name="at-exit", what="one rank hangs in an `atexit` handler", begins=True),
    Kind(name="destroy", what="one rank hangs after the last step"),
    Kind(name="deadlock", what="two ranks call the collectives of two process groups in different orders", culprits=()),
    Kind(name="skip", what="one rank skips a collective that the other ranks call", ranks=3),
    Kind(name="order", what="one rank swaps the order of two collectives", ranks=3),
    Kind(name="barrier", what="one rank calls a barrier once more than the other ranks", ranks=3),
    Kind(name="receive", what="one rank calls `recv`, and no rank sends", ranks=3),
    Kind(name="two", what="two of three ranks sleep", culprits=(1, 2), ranks=3),
    Kind(name="slow", what="not a hang: all ranks are slow for four seconds", culprits=(), hangs=False),
)


def named(names: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds of these names, all where none is given; raises `ValueError` for one that is unknown."""
    known = {kind.name: kind for kind in KINDS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"kinds: {', '.join(unknown)} not known; allowed: {', '.join(known)}")
    return tuple(known[name] for name in names) or KINDS
