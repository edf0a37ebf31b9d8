"""Output of jobs: a live screen, lines of plain text, or JSON."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Iterator
from typing import Protocol

from rallypoint.cli.document import JobDocument, JobsDocument, json_line, json_text
from rallypoint.cli.plain import is_screen, job_lines, table_lines
from rallypoint.cli.values import JobView
from rallypoint.cli.view import overview, view_of
from rallypoint.report.format import clock_time, metrics_text
from rallypoint.wire.status import Event

__all__ = ["STEP_PERIOD", "JsonScreen", "LinesScreen", "Screen", "choose_screen", "news", "print_job", "print_jobs"]

#: A line about steps at most this often, in seconds, since steps alone would fill a log.
STEP_PERIOD = 10.0

#: Longest time between the coordinator's event and the supervisor's event for the same change, in seconds.
_TELLING = 30.0


def news(
    before: JobDocument | None, after: JobDocument, *, step_told_at: float, now: float, zone: datetime.tzinfo | None = None
) -> tuple[tuple[str, ...], float]:
    """Return the lines that are new in `after`, oldest first, and the time of the last line about a step.

    Args:
        before: the document that was shown last; None at first.
        after: the current document.
        step_told_at: time that the previous call returned; 0 at first.
        now: seconds since the epoch; each line starts with the time of its event in `zone`.
    """
    lines = [_line(event.at, event.kind, event.detail, now, zone) for event in _fresh(before, after)]
    status = after.status
    moved = status is not None and status.progress.step is not None and status.progress.step != _step(before)
    if status is not None and moved and now - step_told_at >= STEP_PERIOD:
        text = f"{status.progress.step} {metrics_text(status.progress)}".rstrip()
        lines.append(_line(status.progress.at or now, "step", text, now, zone))
        step_told_at = now
    return tuple(lines), step_told_at


def _fresh(before: JobDocument | None, after: JobDocument) -> list[Event]:
    told = [] if before is None else list(_events(before))
    known = set(told)
    fresh = []
    for event in sorted((event for event in _events(after) if event not in known), key=lambda event: event.at):
        if not any(_same(event, other) for other in told):
            fresh.append(event)
            told.append(event)
    return fresh


def _same(one: Event, other: Event) -> bool:
    """Return whether two events of coordinator and supervisor describe the same change."""
    return (one.kind, one.detail) == (other.kind, other.detail) and abs(one.at - other.at) < _TELLING


def _events(document: JobDocument) -> Iterator[Event]:
    yield from document.record.history
    if document.status is not None and document.status.uid == document.record.uid:
        yield from document.status.events


def _step(document: JobDocument | None) -> int | None:
    return None if document is None or document.status is None else document.status.progress.step


def _line(at: float, kind: str, text: str, now: float, zone: datetime.tzinfo | None) -> str:
    return f"{clock_time(at, now, zone)}  {kind}: {text}" if text else f"{clock_time(at, now, zone)}  {kind}"


class Screen(Protocol):
    """Shows one job repeatedly; as a context manager, it controls the terminal."""

    def __enter__(self) -> object:
        """Start to control the terminal."""

    def __exit__(self, *error: object) -> object:
        """Restore the terminal."""

    def show(self, document: JobDocument) -> None:
        """Show the current document; the same document again changes nothing."""

    def end(self, document: JobDocument) -> None:
        """Show how the job ended, unless that is already shown."""


class LinesScreen(contextlib.AbstractContextManager["LinesScreen"]):
    """Prints one line for each new event."""

    def __init__(self) -> None:
        self._told: JobDocument | None = None
        self._step_told_at = 0.0

    def __exit__(self, *error: object) -> None:
        sys.stdout.flush()

    def show(self, document: JobDocument) -> None:
        """Print the events that were not printed before."""
        lines, self._step_told_at = news(self._told, document, step_told_at=self._step_told_at, now=time.time())
        self._told = document
        for line in lines:
            print(line, flush=True)

    def end(self, document: JobDocument) -> None:
        """Print how the job ended."""
        ending = _view(document).ending
        if ending:
            print(ending, flush=True)


class JsonScreen(contextlib.AbstractContextManager["JsonScreen"]):
    """Prints a document per line, whenever it differs from the previous one."""

    def __init__(self) -> None:
        self._told = ""

    def __exit__(self, *error: object) -> None:
        sys.stdout.flush()

    def show(self, document: JobDocument) -> None:
        """Print the document if it has changed."""
        line = json_line(document)
        if line != self._told:
            print(line, flush=True)
        self._told = line

    def end(self, document: JobDocument) -> None:
        """Do nothing: the last document contains the end."""


def choose_screen(*, json: bool) -> Screen:
    """Return the screen that is suitable for standard output."""
    if json:
        return JsonScreen()
    if not _at_screen():
        return LinesScreen()
    from rallypoint.cli.live import LiveScreen  # noqa: PLC0415  rich is needed at a screen alone

    return LiveScreen()


def print_job(document: JobDocument, *, json: bool) -> None:
    """Print one job in full."""
    if json:
        print(json_text(document))
    elif _at_screen():
        from rallypoint.cli.live import draw_job  # noqa: PLC0415  as above

        draw_job(document)
    else:
        print("\n".join(job_lines(_view(document))))


def print_jobs(document: JobsDocument, *, json: bool) -> None:
    """Print the table of all jobs."""
    if json:
        print(json_text(document))
        return
    table = overview(document.jobs, time.time())
    if _at_screen():
        from rallypoint.cli.live import draw_table  # noqa: PLC0415  as above

        draw_table(table)
    else:
        print("\n".join(table_lines(table)))


def _at_screen() -> bool:
    return is_screen(os.environ, isatty=sys.stdout.isatty())


def _view(document: JobDocument) -> JobView:
    return view_of(document, time.time())
