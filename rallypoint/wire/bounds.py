"""How much JSON is read from a script of a job: its size in memory is many times that of its text. Pure.

Python frees, compares and collects values of this size in less than 50 ms, for which other threads wait.
"""

from __future__ import annotations

__all__ = ["LARGEST", "VALUES", "excess"]

#: Bytes of the largest JSON text of a job that is read whole: a status of 16,384 ranks has a third of it.
LARGEST = 8 << 20

#: Values in such a text: a list without items has two bytes there, and 72 in memory.
VALUES = 1 << 17


def excess(text: bytes) -> str:
    """Return which limit a JSON text exceeds, "" if it exceeds none."""
    if len(text) > LARGEST:
        return f"is larger than the limit of {LARGEST} bytes"
    if sum(map(text.count, (b",", b"[", b"{"))) > VALUES:
        return f"has more values than the limit of {VALUES}"
    return ""
