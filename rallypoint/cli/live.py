"""Jobs on a terminal with rich: tables that are redrawn when something changes."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import sys
import time
from typing import TypeVar, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from rallypoint.cli.document import JobDocument
from rallypoint.cli.values import Column, Fact, JobView, Row, Table
from rallypoint.cli.view import view_of
from rallypoint.report.model import Mood
from rallypoint.wire.printable import printable, terminal_stream

__all__ = ["LiveScreen", "draw_job", "draw_table", "job_screen", "table_screen"]

_COLORS = {Mood.GOOD: "green", Mood.BUSY: "yellow", Mood.BAD: "red", Mood.QUIET: "dim"}

_TITLE = "dim"

#: Number of the newest incidents that are shown; plain text and `--json` contain all.
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


T = TypeVar("T")

#: Lines of a job's screen that are not ranks. If the ranks do not fit on the screen, each node has one row.
_FRAME = 20

#: Most ranks with a row each, on the smallest screen and on a screen that may scroll.
_FEW, _MANY = 8, 64


class LiveScreen(contextlib.AbstractContextManager["LiveScreen"]):
    """A job that is redrawn in place; the last drawing stays when the context ends."""

    def __init__(self) -> None:
        self._console = _console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, document: JobDocument) -> None:
        """Draw the job."""
        self._live.update(_drawn(document, ranks=max(_FEW, self._console.height - _FRAME)), refresh=True)

    def end(self, document: JobDocument) -> None:
        """Do nothing: the last drawing shows the end."""


def draw_job(document: JobDocument) -> None:
    """Draw a job once."""
    _console().print(_drawn(document, ranks=_MANY))


def draw_table(table: Table) -> None:
    """Draw a table once."""
    _console().print(table_screen(_printable(table)))


def _console() -> Console:
    return Console(file=terminal_stream(sys.stdout), highlight=False)


def _drawn(document: JobDocument, *, ranks: int) -> RenderableType:
    by_node = document.plan.max_nodes * document.plan.nproc_per_node > ranks
    shown = view_of(document, time.time(), by_node=by_node)
    return job_screen(_printable(shown))


def _printable(shown: T) -> T:
    """Return a value of `values.py` with escaped control characters: rich draws with its own escape sequences."""
    return cast("T", _spelled(shown))


def _spelled(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(_spelled(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{f.name: _spelled(getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value
