"""Whether output goes to a terminal, or is plain text."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["is_screen"]

_DUMB = ("", "dumb", "unknown")


def is_screen(environ: Mapping[str, str], *, isatty: bool) -> bool:
    """Return whether colours and redrawing are allowed: NO_COLOR (https://no-color.org) and TERM=dumb request plain lines."""
    plain = bool(environ.get("NO_COLOR")) or environ.get("TERM", "") in _DUMB
    return isatty and not plain
