"""Durations, times of day, metrics and culprits as text. Pure."""

from __future__ import annotations

import datetime
import itertools

from rallypoint.wire.exits import signal_name
from rallypoint.wire.incident import Culprit
from rallypoint.wire.status import Progress

__all__ = ["clock_time", "counted", "describe_end", "describe_who", "metrics_text", "span", "time_of_day"]

#: Number of metrics that are shown.
_METRICS = 256

_MINUTE, _HOUR, _DAY = 60, 3600, 86400

#: Seconds of a million days, and the first day of the year 9999: what a script reports may be any float.
_LONGEST, _LAST = 1e6 * _DAY, 253_370_764_800.0


def span(seconds: float) -> str:
    """Return a duration with two significant figures: `0.35 s`, `3.2 s`, `42 s`, `2m 13s`, `1h 05m`, `3d 4h`."""
    seconds = min(max(0.0, seconds), _LONGEST)
    for digits, limit in ((2, 1), (1, 10), (0, _MINUTE)):
        if round(seconds, digits) < limit:
            return f"{seconds:.{digits}f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d {whole % _DAY // _HOUR}h"


def metrics_text(progress: Progress) -> str:
    """Return the metrics in their own order, `loss=0.31 accuracy=0.95`; "" when there are none."""
    first = itertools.islice(progress.metrics.items(), _METRICS)
    return " ".join(f"{name}={value:.6g}" for name, value in first)


def describe_who(culprit: Culprit) -> str:
    """Return `rank 3 on node 1 (host-b)`, only the node if the culprit is a whole node, or `instance 3` of a simple role."""
    if culprit.node < 0 <= culprit.rank:
        return f"instance {culprit.rank}"
    node = f"node {culprit.node}" + (f" ({culprit.host})" if culprit.host else "")
    return node if culprit.rank < 0 else f"rank {culprit.rank} on {node}"


def describe_end(culprit: Culprit) -> str:
    """Return how a process ended: `SIGKILL`, `exit 1`, or `lost` if its end is unknown."""
    if culprit.signal is not None:
        return signal_name(culprit.signal)
    return "lost" if culprit.exit_code is None else f"exit {culprit.exit_code}"


def time_of_day(at: float, zone: datetime.tzinfo | None = None) -> str:
    """Return `2026-01-02 14:00:40`, in this machine's zone unless another is given."""
    moment = _moment(at, datetime.timezone.utc).astimezone(zone)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _moment(at: float, zone: datetime.tzinfo | None) -> datetime.datetime:
    """Return a time between 1970 and 9999; NaN is the first of them."""
    return datetime.datetime.fromtimestamp(min(max(0.0, at), _LAST), zone)


def clock_time(at: float, now: float, zone: datetime.tzinfo | None = None) -> str:
    """Return the time of day, after the date where that is not today's: `14:02:11`, `03-09 14:02`."""
    then, today = _moment(at, zone), _moment(now, zone)
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%m-%d %H:%M")


def counted(number: int, what: str) -> str:
    """Return a number with its noun, as `1 node` and `2 nodes`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
