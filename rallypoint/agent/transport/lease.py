"""For how long nobody has supervised the job. Pure; `now` is an argument.

A supervisor is known by its heartbeat: something that is another thing whenever it is looked at a while later. Only the
looker's own clock counts, and of a gap between two looks only a part: a machine that slept must not find its jobs orphaned when
it wakes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

__all__ = ["Lease", "in_words"]

#: What a gap between two looks counts at the most, in seconds; half of a lease that is shorter than twice that.
_LONGEST_GAP = 30.0

_MINUTE, _HOUR = 60, 3600


@dataclass(frozen=True, kw_only=True)
class Lease:
    """What one process knows of the job's supervisor.

    Attributes:
        seconds: how long the job may be without one.
        at: when it was looked at last, on the looker's clock.
        quiet: seconds since a sign of life.
        mark: the last one; "" before the first.
    """

    seconds: float
    at: float
    quiet: float = 0.0
    mark: str = ""

    @property
    def expired(self) -> bool:
        """Nobody has supervised the job for its lease."""
        return self.quiet >= self.seconds

    def looked(self, mark: str | None, now: float) -> Lease:
        """Take note of the heartbeat as it is now, None when there is none: it ended, or cannot be read at the moment."""
        if mark is not None and mark != self.mark:
            return dataclasses.replace(self, mark=mark, quiet=0.0, at=now)
        return self.waited(now)

    def told(self, quiet: float, now: float) -> Lease:
        """Take note of what somebody else saw: no sign of life for `quiet` seconds."""
        return dataclasses.replace(self, quiet=quiet, at=now)

    def waited(self, now: float) -> Lease:
        """Let time pass without any news."""
        gap = min(max(0.0, now - self.at), _LONGEST_GAP, self.seconds / 2)
        return dataclasses.replace(self, quiet=self.quiet + gap, at=now)


def in_words(seconds: float) -> str:
    """Return a length of time as people write it into a plan: `1 h`, `90 min`, `45 s`."""
    for unit, name in ((_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
