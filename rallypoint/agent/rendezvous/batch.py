"""How large a batch may be, from what was measured with others. Pure.

The memory that a worker uses is taken for a line over its batch: what it needs anyhow, and so much for each sample. Two
observations tell both. One alone bounds the second from above: if everything that was used were used for samples, a batch that
is larger by some factor would need no more than that factor of memory, so a step that keeps to it is safe. Nothing of the model
need be known for that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rallypoint.wire.tuning import Seen

__all__ = ["Choice", "line", "next_batch"]

#: Of the limit that much is used: allocators round up, and fragments stay.
_SHARE = 0.9

#: A batch is at most so many times as large as the one before it: what is measured nearby is believed further than what is not.
_LEAP = 2.0

#: A gain smaller than this is not worth another change.
_WORTH = 1.05

#: So many larger batches that used no more memory say that nobody takes what is written.
_DEAF = 2


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The batch to use next; `settled` says why it stays as it is, "" where it is another one."""

    batch: int
    settled: str = ""


def line(seen: Sequence[Seen]) -> tuple[float, float] | None:
    """Return what is used anyhow and for each sample, in bytes, by the last two different batches; None before that."""
    if not seen:
        return None
    last = seen[-1]
    other = next((one for one in reversed(seen[:-1]) if one.batch != last.batch), None)
    if other is None:
        return None
    each = (last.memory - other.memory) / (last.batch - other.batch)
    return last.memory - each * last.batch, each


def next_batch(seen: Sequence[Seen], limit: int, ceiling: int = 0) -> Choice:
    """Return the batch to try after those that were measured, the oldest first, within `limit` bytes for a worker.

    `ceiling`: memory ran out with any that is larger; 0 where that was not seen. Raises `ValueError` for nothing measured.
    """
    if not seen:
        raise ValueError("seen: the list of measurements is empty; expected at least one")
    last, usable = seen[-1], limit * _SHARE
    if last.memory > usable:
        return _shrunk(seen, usable)
    if _unheard(seen):
        return Choice(
            batch=last.batch, settled="memory use does not grow with the batch; the script may not apply the batch size"
        )
    known = line(seen)
    proportional = last.batch * usable / last.memory
    if known is None or known[1] <= 0:
        wanted = proportional
    else:
        anyhow, each = known
        wanted = (usable - anyhow) / each
    wanted = min(wanted, last.batch * _LEAP)
    bound = ceiling or wanted
    batch = int(min(wanted, bound))
    if batch < last.batch * _WORTH or batch == last.batch:
        why = "a larger batch ran out of memory" if ceiling and bound < wanted else "the memory limit is reached"
        return Choice(batch=last.batch, settled=why)
    return Choice(batch=batch)


def _shrunk(seen: Sequence[Seen], usable: float) -> Choice:
    """Return a batch that fits, for one that uses more than it may."""
    last = seen[-1]
    fitting = max((one.batch for one in seen if one.memory <= usable), default=0)
    known = line(seen)
    if known is not None and known[1] > 0:
        fitting = max(fitting, int((usable - known[0]) / known[1]))
    elif not fitting:
        fitting = int(last.batch * usable / last.memory)
    batch = max(1, min(fitting, last.batch - 1))
    return Choice(batch=batch, settled="one sample already exceeds the available memory" if last.batch == 1 else "")


def _unheard(seen: Sequence[Seen]) -> bool:
    """Return whether the last few batches grew and the memory never did."""
    tail = seen[-_DEAF - 1 :]
    if len(tail) <= _DEAF:
        return False
    pairs = itertools.pairwise(tail)
    return all(later.batch > former.batch and later.memory <= former.memory for former, later in pairs)
