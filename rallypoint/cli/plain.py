"""Aligned lines of plain text, for pipes, files and terminals without colours; and whether output goes to a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rallypoint.cli.values import Column, Fact, JobView, Table

__all__ = ["fact_lines", "is_screen", "job_lines", "table_lines"]

_GAP = "  "

_DUMB = ("", "dumb", "unknown")


def job_lines(shown: JobView) -> Iterator[str]:
    """Yield a job: its facts, the table of nodes, the incidents, and how it ended."""
    phase = f"{shown.phase}: {shown.summary}" if shown.summary else shown.phase
    head = (Fact(label="job", text=shown.name), Fact(label="phase", text=phase))
    yield from fact_lines((*head, *shown.figures, *shown.details))
    for table in (shown.nodes, shown.incidents):
        yield ""
        yield from table_lines(table)
    if shown.ending:
        yield ""
        yield from shown.ending.splitlines()


def fact_lines(facts: Iterable[Fact]) -> Iterator[str]:
    """Yield `label  text`, the texts aligned."""
    facts = tuple(facts)
    width = max((len(fact.label) for fact in facts), default=0)
    for fact in facts:
        yield f"{fact.label:<{width}}{_GAP}{fact.text}"


def table_lines(table: Table) -> Iterator[str]:
    """Yield the titles and the rows, every cell in full; or what is said of an empty table."""
    if not table.rows:
        yield table.empty
        return
    lines = (tuple(column.title for column in table.columns), *(row.cells for row in table.rows))
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    for line in lines:
        yield _GAP.join(_aligned(*cell) for cell in zip(table.columns, line, widths, strict=True)).rstrip()


def _aligned(column: Column, text: str, width: int) -> str:
    return text.rjust(width) if column.right else text.ljust(width)


def is_screen(environ: Mapping[str, str], *, isatty: bool) -> bool:
    """Return whether colours and redrawing are allowed: NO_COLOR (https://no-color.org) and TERM=dumb request plain lines."""
    plain = bool(environ.get("NO_COLOR")) or environ.get("TERM", "") in _DUMB
    return isatty and not plain
