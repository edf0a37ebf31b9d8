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
        ("sleep", "one rank sleeps"),
        ("evaluation", "all ranks evaluate without `.eval()`, at full speed"),
        ("evaluation-rank-0", "rank 0 evaluates without `.eval()`, the others wait in a barrier"),
        ("no-grad", "one rank computes in a `no_grad` region"),
        ("preparation", "one rank prepares data in Python"),
        ("upload", "rank 0 uploads a checkpoint to a slow server"),
        ("download", "one rank downloads from a slow server (urllib)"),
        ("compile", "`torch.compile` with a slow backend"),
        ("cache", "rank 0 fills a cache of many small files, the others wait in a barrier"),
        ("lr-finder", "rank 0 looks for a learning rate with a copy of the model"),
        ("garbage", "one rank collects garbage"),
        ("starvation", "one rank gets hardly any processor time (nice 19 beside busy processes)"),
        ("allocation", "one rank allocates and fills memory again and again"),
        ("barrier", "rank 0 works alone, the others wait in a barrier"),
        ("gather", "one rank comes late to `all_gather_object`"),
        ("receive", "one rank waits in `recv` for a rank that sends late"),
        ("two-groups", "rank 0 waits in a second group while its call in the first one is pending; the other comes late"),
        ("async", "one rank computes while its asynchronous `all_reduce` is pending"),
        ("loader-start", "a data loader whose process takes long to start"),
        ("loader-batch", "a data loader of which one batch takes long"),
        ("slow-file", "a file that comes in byte by byte"),
        ("input", "an answer on standard input that comes late"),
        ("c-loop", "a loop in C that holds the GIL"),
        ("plot", "one rank draws a picture in Python"),
        ("slow-pipe", "one rank logs to a pipe that is read slowly"),
        ("lock", "a lock that another thread holds for long"),
        ("future", "the result of a thread pool"),
        ("event-loop", "an event loop that waits"),
        ("pool", "a pool of processes that work"),
        ("flock", "a file lock that another process holds"),
        ("store", "a key of the store that is set late"),
        ("paused-child", "a child process that is stopped for a while"),
        ("first-save", "the first checkpoint of rank 0 takes long"),
        ("left", "after `destroy_process_group` one rank works on"),
        ("last", "one rank has ended with 0, the other one works on"),
    )
)


def named_slow(names: Sequence[str]) -> tuple[SlowKind, ...]:
    """Return the kinds of these names, all where none is given; raises `ValueError` for an unknown name."""
    known = {kind.name: kind for kind in SLOW_KINDS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"kinds: {', '.join(unknown)} not known; allowed: {', '.join(known)}")
    return tuple(known[name] for name in names) or SLOW_KINDS
