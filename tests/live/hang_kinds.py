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
    Kind(name="sleep", what="one rank sleeps in its step"),
    Kind(name="stop", what="one rank is stopped (SIGSTOP)"),
    Kind(name="busy", what="an endless loop in Python, at 100 % of a core"),
    Kind(name="spin", what="an endless loop over `time.sleep(0)`"),
    Kind(name="gil", what="an endless loop in C that never gives the GIL back"),
    Kind(name="regex", what="a regular expression that backtracks without end"),
    Kind(name="lock-c", what="a lock in a C call, the GIL released"),
    Kind(name="lock-c-gil", what="a lock in a C call, the GIL held"),
    Kind(name="lock", what="a Python lock that is taken twice"),
    Kind(name="finalizer", what="a finalizer that wants a lock which its own thread holds"),
    Kind(name="queue", what="`queue.get` of a queue that stays empty"),
    Kind(name="socket", what="a read of a socket without data"),
    Kind(name="pipe", what="a read of a pipe without a writer"),
    Kind(name="fifo", what="a file whose `open` does not return, as on a dead NFS"),
    Kind(name="flock", what="a file lock held by another process"),
    Kind(name="disk", what="a wait that no signal interrupts (state D)"),
    Kind(name="child", what="waiting for a child process that never ends"),
    Kind(name="join", what="joining a thread that never ends"),
    Kind(name="future", what="the result of a future that is never set"),
    Kind(name="event-loop", what="an event loop in which nothing happens"),
    Kind(name="signal", what="waiting for a signal"),
    Kind(name="producer", what="a queue whose producing process has ended"),
    Kind(name="debugger", what="a breakpoint that was left in"),
    Kind(name="stdin", what="a question on standard input"),
    Kind(name="loader-stuck", what="a data loader whose worker sleeps"),
    Kind(name="loader-stopped", what="a data loader whose worker is stopped"),
    Kind(name="store", what="waiting for a key of the store that is never set"),
    Kind(name="hook", what="a hook in the backward pass that does not return"),
    Kind(name="exited", what="one rank ended with 0 while the others wait for it"),
    Kind(name="checkpoint", what="rank 0 hangs while it saves", culprits=(0,)),
    Kind(name="evaluation", what="one rank hangs in an evaluation"),
    Kind(name="import", what="one rank hangs while it imports", begins=True),
    Kind(name="first-step", what="one rank hangs before its first step", begins=True),
    Kind(name="at-exit", what="one rank hangs in an exit handler", begins=True),
    Kind(name="destroy", what="one rank hangs after the last step"),
    Kind(name="deadlock", what="two groups, of which each rank begins with another", culprits=()),
    Kind(name="skip", what="one rank leaves a collective out", ranks=3),
    Kind(name="order", what="one rank calls two collectives the other way round", ranks=3),
    Kind(name="barrier", what="one rank calls a barrier too many", ranks=3),
    Kind(name="receive", what="one rank receives without a sender", ranks=3),
    Kind(name="two", what="two ranks of three sleep", culprits=(1, 2), ranks=3),
    Kind(name="slow", what="no hang: all ranks are slow for four seconds", culprits=(), hangs=False),
)


def named(names: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds of these names, all where none is given; raises `ValueError` for one that is unknown."""
    known = {kind.name: kind for kind in KINDS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"kinds: {', '.join(unknown)} not known; allowed: {', '.join(known)}")
    return tuple(known[name] for name in names) or KINDS
