"""The same values with rich: calm colours, aligned, and nothing wraps at 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from rallypoint.cli.values import Column, Fact, JobView, Row, Table
from rallypoint.report.model import Mood

__all__ = ["job_screen", "table_screen"]

_COLORS = {Mood.GOOD: "green", Mood.BUSY: "yellow", Mood.BAD: "red", Mood.QUIET: "dim"}

_TITLE = "dim"

#: Newest incidents that are shown; the plain form and `--json` have them all.
_INCIDENTS = 8


def job_screen(shown: JobView) -> RenderableType:
    """Return a job as a group of lines and tables."""
    parts: list[RenderableType] = [_headline(shown), Text(), _figures(shown.figures), _details(shown.details), Text()]
    parts.append(table_screen(shown.nodes))
    if shown.incidents.rows:
        parts.extend((Text(), table_screen(shown.incidents, last=_INCIDENTS)))
    if shown.ending:
        parts.extend((Text(), _ending(shown)))
    return Group(*parts)


def table_screen(table: Table, *, last: int | None = None) -> RenderableType:
    """Return a table without rules; with `last`, its last rows and how many there are before them."""
    if not table.rows:
        return Text(table.empty, style=_TITLE)
    rich = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=_TITLE)
    for column in table.columns:
        _add_column(rich, column)
    rows = table.rows if last is None else table.rows[-last:]
    for row in rows:
        rich.add_row(*(_cell(column, text, row) for column, text in zip(table.columns, row.cells, strict=True)))
    hidden = len(table.rows) - len(rows)
    return Group(Text(f"{hidden} earlier", style=_TITLE), rich) if hidden else rich


def _add_column(rich: RichTable, column: Column) -> None:
    # rich narrows only columns that may wrap, so the others keep their width and this one ends in an ellipsis.
    rich.add_column(
        column.title,
        justify="right" if column.right else "left",
        no_wrap=not column.shrinks,
        overflow="ellipsis",
    )


def _cell(column: Column, text: str, row: Row) -> Text:
    if row.continues and column.repeats:
        return Text()
    style = _COLORS[row.mood] if column.colored else ""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _headline(shown: JobView) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(shown.name, style="bold")
    line.append(f"  {shown.phase}", style=f"bold {_COLORS[shown.mood]}")
    return line.append(f"  {shown.summary}" if shown.summary else "", style="")


def _figures(figures: tuple[Fact, ...]) -> RichTable:
    rich = RichTable(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style=_TITLE)
    for fact in figures:
        rich.add_column(Text(fact.label.upper()), no_wrap=True)
    rich.add_row(*(Text(fact.text) for fact in figures))
    return rich


def _details(details: tuple[Fact, ...]) -> RenderableType:
    rich = RichTable.grid(padding=(0, 2, 0, 0))
    rich.add_column(style=_TITLE, no_wrap=True)
    rich.add_column(overflow="ellipsis")
    for fact in details:
        rich.add_row(Text(fact.label), Text(fact.text, no_wrap=True, overflow="ellipsis"))
    return Group(Text(), rich)


def _ending(shown: JobView) -> Text:
    first, *rest = shown.ending.splitlines()
    text = Text(first, style=_COLORS[shown.mood])
    return text.append("".join(f"\n{line}" for line in rest), style="default")
