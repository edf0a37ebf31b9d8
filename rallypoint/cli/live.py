"""Drawing on a screen with rich: once, or again and again in its place."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import sys
import time
from typing import TypeVar, cast

from rich.console import Console, RenderableType
from rich.live import Live

from rallypoint.cli.document import JobDocument
from rallypoint.cli.pretty import job_screen, table_screen
from rallypoint.cli.values import Table
from rallypoint.cli.view import view_of
from rallypoint.wire.printable import printable, terminal_stream

__all__ = ["LiveScreen", "draw_job", "draw_table"]

T = TypeVar("T")

#: Lines of a job's screen that are not ranks. Where the ranks do not fit beside them, each node has one row.
_FRAME = 20

#: Ranks that have a row each on the smallest screen, and on a screen that may scroll.
_FEW, _MANY = 8, 64


class LiveScreen(contextlib.AbstractContextManager["LiveScreen"]):
    """A job drawn again in its place; the last drawing stays when the context ends."""

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
        """Nothing: the last drawing holds it."""


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
    """Return a value of `values.py` with its control characters spelled out: rich draws with escape sequences of its own."""
    return cast("T", _spelled(shown))


def _spelled(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(_spelled(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{f.name: _spelled(getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value
