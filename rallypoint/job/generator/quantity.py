"""Kubernetes' quantities as numbers, so that two of them can be compared. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["is_quantity", "quantity"]

_FORM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE])?", re.ASCII)

_UNITS = {
    "": Fraction(1),
    **{unit: Fraction(1, 1000**power) for power, unit in enumerate("mun", start=1)},
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


def is_quantity(text: str) -> bool:
    """Return whether `text` is a quantity that `quantity` reads."""
    return len(text) <= 40 and _FORM.fullmatch(text) is not None


def quantity(value: str | int) -> Fraction:
    """Return the number that a quantity (`500m`, `2`, `1.5Gi`) stands for; raises `ValueError` for what is none."""
    match = _FORM.fullmatch(str(value))
    if match is None:
        raise ValueError(value)
    return Fraction(match[1]) * _UNITS[match[2] or ""]
