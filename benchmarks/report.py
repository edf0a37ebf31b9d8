"""What every benchmark prints: a table for people, and the same figures as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Case", "arguments", "deliver", "versions"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measured thing.

    Attributes:
        name: of the case; `command` is what was run.
        samples: one figure per repetition, in `unit`.
        parts: medians of the parts that each figure is made of, in the same unit, in order.
        counts: whatever was counted beside it (hangs, launches).
    """

    name: str
    command: str
    samples: tuple[float, ...]
    unit: str = "s"
    parts: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the case with its median, minimum and maximum; these are None when nothing was measured."""
        return {
            "case": self.name,
            "median": round(statistics.median(self.samples), 4) if self.samples else None,
            "min": round(min(self.samples), 4) if self.samples else None,
            "max": round(max(self.samples), 4) if self.samples else None,
            "n": len(self.samples),
            "unit": self.unit,
            "command": self.command,
            "parts": {name: round(value, 4) for name, value in self.parts.items()},
            **self.counts,
        }


def versions(*distributions: str) -> dict[str, str]:
    """Return the versions of Python and of the named distributions."""
    found = {name: importlib.metadata.version(name) for name in distributions}
    return {"python": platform.python_version(), "machine": platform.machine(), **found}


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the option that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as JSON, too")
    return parser


def deliver(benchmark: str, cases: Sequence[Case], found: dict[str, str], target: Path | None) -> None:
    """Print the table; write the JSON where a target is given."""
    print(table(cases))
    if target is not None:
        figures = {"benchmark": benchmark, "cases": [case.to_json() for case in cases], "versions": found}
        target.write_text(json.dumps(figures, indent=1) + "\n")


def table(cases: Sequence[Case]) -> str:
    """Return the cases as aligned lines, one a case."""
    parts = list(dict.fromkeys(name for case in cases for name in case.parts))
    counts = list(dict.fromkeys(name for case in cases for name in case.counts))
    rows = [["case", "median", "min", "max", "n", *counts, *parts]]
    for case in cases:
        figures = case.to_json()
        rows.append(
            [
                case.name,
                *(_figure(figures[key], case.unit) for key in ("median", "min", "max")),
                str(len(case.samples)),
                *(str(case.counts.get(name, "")) for name in counts),
                *(_figure(case.parts.get(name), case.unit) for name in parts),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _figure(value: object, unit: str) -> str:
    return "-" if not isinstance(value, (int, float)) else f"{value:.3f} {unit}"


def with_samples(case: Case, more: Sequence[float]) -> Case:
    """Return the case with more samples."""
    return dataclasses.replace(case, samples=(*case.samples, *more))
