"""Memory in huge pages: what is forked from a process that has it there is made and taken apart in a fraction of the time.

A worker shares some 200 MB with the zygote. In pages of 4 KiB the kernel has 50,000 of them to enter for each fork, and to let
go of when it ends, before which its place is not free; in pages of 2 MiB it is a hundred. A page that is written to is parted
into small ones first, and only what is written to is copied: the rest stays shared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rallypoint.agent.linux import collapse

__all__ = ["HUGE", "into_huge_pages", "spans"]

#: Bytes of a huge page on x86-64, and on ARM with pages of 4 KiB; elsewhere the kernel refuses, and nothing is lost.
HUGE = 2 << 20

#: Seconds that may go into it: a machine whose memory is in pieces has to push together what a huge page needs.
_WITHIN = 2.0

#: What part of a huge page must be in use already, so that little is taken that was not.
_FULL = 0.75

#: Bytes of one page's entry in /proc/PID/pagemap, and the bit of the last of them that says that it is in memory.
_ENTRY, _PRESENT = 8, 0x80


def into_huge_pages(*, process: Path = Path("/proc/self"), take: Callable[[int, int], bool] = collapse) -> int:
    """Have this process's own memory in huge pages as far as the kernel has some; return how many bytes went there.

    It takes some 7 ms for each. `take(address, length)` says whether it worked.
    """
    until, taken = time.monotonic() + _WITHIN, 0
    try:
        lines = (process / "maps").read_text().splitlines()
        with (process / "pagemap").open("rb", buffering=0) as pages:
            for address in spans(lines):
                if time.monotonic() > until:
                    break
                if _share_in_use(pages.fileno(), address) >= _FULL:
                    taken += HUGE * take(address, HUGE)
    except OSError:  # a /proc that tells less; then it stays as it was
        return taken
    return taken


def spans(maps: Iterable[str]) -> Iterator[int]:
    """Return where huge pages could begin: within what is private, may be written to, and comes from no file."""
    for line in maps:
        span, access, _, _, inode, *name = line.split(maxsplit=5)
        if not access.startswith("rw-p") or inode != "0" or (name and name[0].startswith(("[stack", "[v"))):
            continue
        begin, end = (int(part, 16) for part in span.split("-"))
        yield from range(-(-begin // HUGE) * HUGE, end // HUGE * HUGE, HUGE)


def _share_in_use(pagemap: int, address: int) -> float:
    page = os.sysconf("SC_PAGE_SIZE")
    entries = os.pread(pagemap, HUGE // page * _ENTRY, address // page * _ENTRY)
    return sum(entry & _PRESENT > 0 for entry in entries[_ENTRY - 1 :: _ENTRY]) / (HUGE // page)
