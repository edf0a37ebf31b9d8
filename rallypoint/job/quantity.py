"""Conversion of Kubernetes quantities to numbers, to compare them. Pure.

`8Gi`, `1.5`, `500m`, `1e3`: read exactly, as fractions of the unit (cores, bytes).
"""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["MI", "is_quantity", "quantity", "write_bytes"]

_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"

#: Bytes of one `Mi`.
MI = 2**20


#: Maximum characters of a quantity: `1e999999999` would fill the memory.
_LONGEST = 40
_LARGEST_POWER = 30


def is_quantity(text: str) -> bool:
    """Return whether `text` is a quantity that `quantity` reads."""
    try:
        quantity(text)
    except ValueError:
        return False
    return True


def quantity(value: str | int) -> Fraction:
    """Return the number that a quantity stands for; raises `ValueError` for what is none."""
    text = str(value)
    match = _QUANTITY.fullmatch(text)
    if match is None or len(text) > _LONGEST:
        raise ValueError(text)
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix.endswith("i"):
        return number * _power(2, 10 * (_BINARY.index(suffix[0]) + 1))
    power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    if abs(power) > _LARGEST_POWER:
        raise ValueError(text)
    return number * _power(10, power) if power >= 0 else number / _power(10, -power)


def write_bytes(number: Fraction) -> str:
    """Return a number of bytes, rounded up to a whole one, in the largest binary unit that holds it exactly."""
    whole = -(-number.numerator // number.denominator)
    for power in range(len(_BINARY), 0, -1):
        if whole and whole % 2 ** (10 * power) == 0:
            return f"{whole // 2 ** (10 * power)}{_BINARY[power - 1]}i"
    return str(whole)


def _power(base: int, exponent: int) -> int:
    return int(base**exponent)
