"""Where jobs are shown: a live screen, lines of plain text, or JSON."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Protocol

from rallypoint.cli.document import JobDocument, JobsDocument, json_line, json_text
from rallypoint.cli.news import news
from rallypoint.cli.plain import job_lines, table_lines
from rallypoint.cli.terminal import is_screen
from rallypoint.cli.values import JobView
from rallypoint.cli.view import overview, view_of

__all__ = ["JsonScreen", "LinesScreen", "Screen", "choose_screen", "print_job", "print_jobs"]


class Screen(Protocol):
    """Shows one job, time and again; as a context it owns the terminal."""

    def __enter__(self) -> object:
        """Take the terminal."""

    def __exit__(self, *error: object) -> object:
        """Give it back."""

    def show(self, document: JobDocument) -> None:
        """Show what is true now; saying the same thing twice adds nothing."""

    def end(self, document: JobDocument) -> None:
        """Tell how the job ended, where what was shown does not."""


class LinesScreen(contextlib.AbstractContextManager["LinesScreen"]):
    """What is new, a line each."""

    def __init__(self) -> None:
        self._told: JobDocument | None = None
        self._step_told_at = 0.0

    def __exit__(self, *error: object) -> None:
        sys.stdout.flush()

    def show(self, document: JobDocument) -> None:
        """Print what was not told before."""
        lines, self._step_told_at = news(self._told, document, step_told_at=self._step_told_at, now=time.time())
        self._told = document
        for line in lines:
            print(line, flush=True)

    def end(self, document: JobDocument) -> None:
        """Print the story of the end."""
        ending = _view(document).ending
        if ending:
            print(ending, flush=True)


class JsonScreen(contextlib.AbstractContextManager["JsonScreen"]):
    """A document a line, whenever it differs from the one before."""

    def __init__(self) -> None:
        self._told = ""

    def __exit__(self, *error: object) -> None:
        sys.stdout.flush()

    def show(self, document: JobDocument) -> None:
        """Print the document if it is another one."""
        line = json_line(document)
        if line != self._told:
            print(line, flush=True)
        self._told = line

    def end(self, document: JobDocument) -> None:
        """Nothing: the last document holds it."""


def choose_screen(*, json: bool) -> Screen:
    """Return the screen that standard output asks for."""
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
