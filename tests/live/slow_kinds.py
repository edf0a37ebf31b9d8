"""The kinds of healthy slowness of tests/live/scripts/slow_ways.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SLOW_KINDS", "SlowKind", "named_slow"]


@dataclass(frozen=True, kw_only=True)
class SlowKind:
    """One kind of healthy slowness: its name in the script, and a description."""

    name: str
    what: str


SLOW_KINDS = tuple(
    SlowKind(name=name, what=what)
    for name, what in (
        ("subprocess", "one rank waits for a child process"),
        ("sleep", "one rank sleeps in a step"),
        ("evaluation", "all ranks evaluate the model at full speed, without `.eval()`"),
        ("evaluation-rank-0", "rank 0 evaluates the model without `.eval()` while the other ranks wait in a barrier"),
        ("no-grad", "one rank computes in a `no_grad` region"),
        ("preparation", "one rank prepares data in Python"),
        ("upload", "rank 0 uploads a checkpoint to a slow server"),
        ("download", "one rank downloads from a slow server (urllib)"),
        ("compile", "`torch.compile` runs with a slow backend"),
        ("cache", "rank 0 writes a cache of many small files while the other ranks wait in a barrier"),
        ("lr-finder", "rank 0 trains a copy of the model to find a learning rate"),
        ("garbage", "one rank runs Python's garbage collector"),
        (
            "starvation",
            "one rank gets hardly any processor time (its nice value is 19, and other processes keep the cores busy)",
        ),
        ("allocation", "one rank allocates and fills memory repeatedly"),
        ("barrier", "rank 0 works alone while the other ranks wait in a barrier"),
        ("gather", "one rank enters `all_gather_object` late"),
        ("receive", "one rank waits in `recv` for a rank that sends late"),
        (
            "two-groups",
            "rank 0 has a pending collective in one process group and waits in a second group for rank 1, which is late",
        ),
        ("async", "one rank computes while its asynchronous `all_reduce` is pending"),
        ("loader-start", "the data loader's worker process takes a long time to start"),
        ("loader-batch", "the data loader takes a long time for one batch"),
        ("slow-file", "one rank reads a file that arrives byte by byte"),
        ("input", "one rank waits for input on standard input, which arrives late"),
        ("c-loop", "one rank runs a long loop in C that holds the GIL"),
        ("plot", "one rank draws a plot in Python"),
        ("slow-pipe", "one rank writes its log to a pipe whose reader is slow"),
        ("lock", "one rank waits for a lock that another thread holds for a long time"),
        ("future", "one rank waits for the result of a thread pool"),
        ("event-loop", "one rank waits in an event loop"),
        ("pool", "one rank waits for the results of a process pool"),
        ("flock", "one rank waits for a file lock that another process holds"),
        ("store", "one rank waits for a `TCPStore` key that is set late"),
        ("paused-child", "one rank waits for a child process that is stopped (SIGSTOP) for some seconds"),
        ("first-save", "rank 0 takes a long time to save its first checkpoint"),
        ("left", "one rank continues to work after `destroy_process_group`"),
        ("last", "one rank has exited with code 0, and the other rank continues to work"),
    )
)


def named_slow(names: Sequence[str]) -> tuple[SlowKind, ...]:
    """Return the kinds of these names, all where none is given; raises `ValueError` for an unknown name."""
    known = {kind.name: kind for kind in SLOW_KINDS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"kinds: {', '.join(unknown)} not known; allowed: {', '.join(known)}")
    return tuple(known[name] for name in names) or SLOW_KINDS
