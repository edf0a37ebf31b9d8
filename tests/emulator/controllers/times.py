"""Go's durations, Kubernetes' times, and the pace at which the controllers' waits pass. Pure."""

from __future__ import annotations

import datetime as dt
import re

__all__ = ["parse_go_duration", "read_time", "write_time"]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_WHOLE = re.compile(rf"([+-]?)((?:{_PART.pattern})+|0)", re.ASCII)


def parse_go_duration(text: str) -> float | None:
    """Return what Go's `time.ParseDuration` reads, in seconds, or None: it knows no days, and no number without a unit."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(match[2]))
    return -seconds if match[1] == "-" else seconds


def write_time(at: float) -> str:
    """Return seconds since the epoch as Kubernetes writes them; with microseconds, since graces may last less than 1 s."""
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_time(text: str) -> float:
    """Return a time of Kubernetes as seconds since the epoch."""
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
