"""How much JSON is read from a script of a job, and which numbers in it. Pure.

The size of JSON in memory is many times that of its text. Python frees, compares and collects values of this size in less than
50 ms, for which other threads wait.

Every number and collection that `rallypoint.wire.codec` reads is limited. A number without limits of its own is within
`COUNT`: it may be the size of a list, the end of a range or a factor. A number that is only compared, shown and added has
larger limits, which its class declares (`limits`). A float has limits only if its class declares them.
"""

from __future__ import annotations

__all__ = [
    "BUDGET",
    "COUNT",
    "LARGEST",
    "PID",
    "TIME",
    "VALUES",
    "WHOLE",
    "excess",
    "has_more_values",
    "read_count",
    "read_seconds",
]

#: Bytes of the largest JSON text of a job that is read whole: a status of 16,384 ranks has a third of it.
LARGEST = 8 << 20

#: Values in such a text: a list without items has two bytes there, and 72 in memory.
VALUES = 1 << 17

#: Least and most value of a number that may be used as a size, a range or a factor.
COUNT = (-(1 << 20), 1 << 20)

#: Of a number that is only compared, shown and added, such as a step, bytes or a time: that of 64 bits.
WHOLE = (-(1 << 63), (1 << 64) - 1)

#: Seconds since the epoch, as a float: no NaN and no infinity, which cannot be compared or rounded.
TIME = (-(1 << 40), 1 << 40)

#: Bytes that one call searches.
_PART = 1 << 20

#: Digits of the largest of these.
_DIGITS = len(str(WHOLE[1]))

#: Of a process id on Linux (-1 is none), and of a budget for restarts.
PID, BUDGET = (-1, 1 << 22), (-1, 10**18)


def excess(text: bytes) -> str:
    """Return the limit that a JSON text exceeds, such as `8388608 bytes`; "" if it is within the limits."""
    if len(text) > LARGEST:
        return f"{LARGEST} bytes"
    if has_more_values(text, VALUES):
        return f"{VALUES} JSON values"
    return ""


def has_more_values(text: bytes, most: int) -> bool:
    """Return whether a JSON text may have more than `most` values. Other threads run while a long text is searched."""
    found = 0
    for begin in range(0, len(text), _PART):
        found += sum(text.count(mark, begin, begin + _PART) for mark in (b",", b"[", b"{"))
        if found > most:
            return True
    return False


def read_count(text: str, most: int = COUNT[1]) -> int | None:
    """Return the number that a text, such as the name of a folder, stands for; None for other texts and numbers above `most`.

    `str.isdigit` is true of texts that `int` refuses, such as "\u00b2", and a name may have 255 digits.
    """
    if len(text) > _DIGITS or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number <= most else None


def read_seconds(text: str) -> float | None:
    """Return the seconds that a text stands for; None for other texts, negative numbers, NaN and infinity."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
