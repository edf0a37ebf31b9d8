"""Whether output goes to a person at a screen, or is lines of plain text."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["is_screen"]

_DUMB = ("", "dumb", "unknown")


def is_screen(environ: Mapping[str, str], *, isatty: bool) -> bool:
    """Return whether colours and moving text are welcome: NO_COLOR (https://no-color.org) and TERM=dumb ask for plain lines."""
    plain = bool(environ.get("NO_COLOR")) or environ.get("TERM", "") in _DUMB
    return isatty and not plain
