"""What is shown of a job, as frozen values that every renderer reads. All cells are text already."""

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
        shrinks: where the screen is narrow, this column gives way.
        repeats: a cell that continues the row above says nothing new; a person's table may leave it blank.
        colored: the row's mood is told by this cell.
    """

    title: str
    right: bool = False
    shrinks: bool = False
    repeats: bool = False
    colored: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: as many cells as it has columns; `continues` when it belongs to the row above."""

    cells: tuple[str, ...]
    mood: Mood = Mood.QUIET
    continues: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows; `empty` is what is said when there are no rows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    empty: str = ""


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job as it is shown.

    Attributes:
        phase: its word; `summary` what that means now, in a phrase.
        figures: short values for one line of columns; `details` longer ones, a line each.
        nodes: a row for each rank (or for each node), `incidents` a row for each fault.
        ending: how it ended, "" while it has not.
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
