"""Which streams of a worker go where, by torch's numbers."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from rallypoint.agent.workers.logs import Streams

__all__ = ["Std", "read_streams"]


class Std(enum.IntFlag):
    """The streams of a worker: torch's `Std`, which is taken in its place, too."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, text: str) -> Std | dict[int, Std]:
        """Return what `0|1|2|3` or `LOCAL_RANK:N,...` means; raises `ValueError`."""
        if text in _WORDS:
            return cls(int(text))
        found = {}
        for item in text.split(","):
            rank, _, word = item.strip().partition(":")
            if not rank.isdecimal() or word not in _WORDS:
                raise ValueError(f"{text!r} is not allowed; expected 0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:N,...")
            found[int(rank)] = cls(int(word))
        return found


_WORDS = tuple(str(number) for number in range(4))


def read_streams(redirects: object, tee: object) -> Streams:
    """Return what goes to files and what to both, from `Std` for all ranks or by local rank; raises `ValueError`."""
    every, of = _read(redirects, "redirects")
    tee_every, tee_of = _read(tee, "tee")
    return Streams(redirects=every, redirects_of=of, tee=tee_every, tee_of=tee_of)


def _read(value: object, field: str) -> tuple[int, dict[int, int]]:
    if isinstance(value, Mapping):
        return 0, {_rank(rank, field): _number(std, field) for rank, std in value.items()}
    return _number(value, field), {}


def _rank(rank: object, field: str) -> int:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise ValueError(f"{field}: key {rank!r} is not allowed; expected a local rank, 0 or more")
    return rank


def _number(std: object, field: str) -> int:
    if isinstance(std, bool) or not isinstance(std, int) or not 0 <= std <= Std.ALL:
        raise ValueError(f"{field}: {std!r} is not allowed; expected a Std, or a dict from local rank to Std")
    return int(std)
