"""Conversion of durations between text and seconds. Pure.

Three forms are read: Go's (`1h30m`, `300ms`, with `d` for days), ISO 8601 (`PT1M30S`, `P1DT2H`, `P1W`) and a plain number of
seconds. Sums are exact until the last step, so `0.1s` is the float 0.1 and nothing near it. ISO years and months are
refused, because they have no fixed length.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from fractions import Fraction

from rallypoint.wire.errors import RallypointError

__all__ = ["DURATION_FORMS", "DurationError", "DurationLike", "format_duration", "parse_duration"]

DURATION_FORMS = "90s, 1h30m, 7d, 300ms, PT1M30S or a number of seconds"

DurationLike = str | int | float | dt.timedelta

_DAY, _HOUR, _MINUTE = 86400, 3600, 60

_UNITS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # micro sign
    "μs": Fraction(1, 10**6),  # Greek mu: Go reads both
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(_MINUTE),
    "h": Fraction(_HOUR),
    "d": Fraction(_DAY),
}

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PART = re.compile(rf"({_NUMBER})({'|'.join(_UNITS)})", re.ASCII)
_COMPOUND = re.compile(rf"\+?(?:{_NUMBER}(?:{'|'.join(_UNITS)}))+", re.ASCII)
_SECONDS = re.compile(rf"\+?{_NUMBER}(?:[eE][+-]?\d+)?", re.ASCII)
_ISO = re.compile(
    r"P(?=[\dT])(?:(?P<w>\d+(?:[.,]\d+)?)W)?(?:(?P<d>\d+(?:[.,]\d+)?)D)?"
    r"(?:T(?=\d)(?:(?P<h>\d+(?:[.,]\d+)?)H)?(?:(?P<m>\d+(?:[.,]\d+)?)M)?(?:(?P<s>\d+(?:[.,]\d+)?)S)?)?",
    re.ASCII,
)
_ISO_UNITS = {"w": 7 * _DAY, "d": _DAY, "h": _HOUR, "m": _MINUTE, "s": 1}

#: Longer texts are rejected, because exact sums over them are slow.
_LONGEST = 100

#: Outside these bounds, durations are written as plain seconds.
_SMALLEST_COMPOUND, _LARGEST_COMPOUND = 1e-9, 1e15


class DurationError(RallypointError, ValueError):
    """A value is not a duration."""

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"{self.value!r} is not a duration; expected {DURATION_FORMS}, 0 or more"


def parse_duration(value: DurationLike) -> float:
    """Return `value` as seconds, finite and not negative; raises `DurationError` (a `ValueError`) otherwise."""
    seconds = _seconds(value)
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise DurationError(value)
    return seconds


def format_duration(seconds: float) -> str:
    """Return the shortest compound (`1h30m`, `300ms`, `7d`) that `parse_duration` reads as exactly `seconds`."""
    seconds = parse_duration(seconds)
    if seconds == 0:
        return "0s"
    if not _SMALLEST_COMPOUND <= seconds <= _LARGEST_COMPOUND:
        return repr(seconds)
    exact = Fraction(repr(seconds))
    return _format_small(exact) if exact < 1 else _format_compound(exact)


def _seconds(value: object) -> float | None:
    # bool is an int to Python, but `timeout: true` is no number of seconds to anyone.
    if isinstance(value, bool):
        return None
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)):
        return _finite(value)
    return _text_seconds(value.strip()) if isinstance(value, str) else None


def _finite(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        return None


def _text_seconds(text: str) -> float | None:
    if len(text) > _LONGEST:
        return None
    if _SECONDS.fullmatch(text):
        return float(text)
    if _COMPOUND.fullmatch(text):
        return _finite_sum(sum((Fraction(number) * _UNITS[unit] for number, unit in _PART.findall(text)), Fraction(0)))
    iso = _ISO.fullmatch(text)
    return _iso_seconds(iso) if iso else None


def _iso_seconds(match: re.Match[str]) -> float | None:
    parts = ((number, _ISO_UNITS[unit]) for unit, number in match.groupdict().items() if number is not None)
    return _finite_sum(sum((Fraction(number.replace(",", ".")) * seconds for number, seconds in parts), Fraction(0)))


def _finite_sum(exact: Fraction) -> float | None:
    try:
        return float(exact)
    except OverflowError:
        return None


def _format_small(exact: Fraction) -> str:
    unit, factor = next((u, f) for u, f in (("ms", 10**3), ("us", 10**6), ("ns", 10**9)) if exact * f >= 1)
    return f"{_decimal(exact * factor)}{unit}"


def _format_compound(exact: Fraction) -> str:
    days, rest = divmod(exact, _DAY)
    hours, rest = divmod(rest, _HOUR)
    minutes, rest = divmod(rest, _MINUTE)
    whole = "".join(f"{number}{unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if number)
    return f"{whole}{_decimal(rest)}s" if rest else whole


def _decimal(exact: Fraction) -> str:
    """Return a fraction whose denominator divides a power of ten in decimal digits, all of them."""
    digits = 0
    while exact.denominator != 1:
        exact *= 10
        digits += 1
    text = str(exact.numerator).zfill(digits + 1)
    return f"{text[:-digits]}.{text[-digits:]}" if digits else text
