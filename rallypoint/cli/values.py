"""The displayed values of a job, as frozen dataclasses that every renderer reads. All cells are text."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.report.model import Mood

__all__ = ["Column", "Fact", "JobView", "Row", "Table"]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One value and its name."""

    label: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        title: in capitals.
        right: numbers are aligned to the right.
        shrinks: on a narrow screen, this column is cut.
        repeats: on a screen, a cell with the value of the row above is blank.
        colored: this cell has the colour of the row.
    """

    title: str
    right: bool = False
    shrinks: bool = False
    repeats: bool = False
    colored: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table, with a cell for each column; `continues` if it belongs to the row above."""

    cells: tuple[str, ...]
    mood: Mood = Mood.QUIET
    continues: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows; `empty` is the text for a table without rows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    empty: str = ""


@dataclass(frozen=True, kw_only=True)
class JobView:
    """The displayed values of one job.

    Attributes:
        phase: its name; `summary` explains it in a phrase.
        figures: short values for one line of columns; `details` are longer values, a line each.
        nodes: a row for each rank (or for each node), `incidents` a row for each fault.
        ending: how it ended; "" while it runs.
    """

    name: str
    phase: str
    summary: str
    mood: Mood
    figures: tuple[Fact, ...]
    details: tuple[Fact, ...]
    nodes: Table
    incidents: Table
    ending: str = ""
