"""Write docs/reference/cli.md, the help of every command: `python tools/help_page.py`. The page is that of Python 3.11."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rallypoint.agent.main import build_parser as agent_parser
from rallypoint.cli.main import build_parser as command_parser

__all__ = ["PAGE", "PYTHON", "main", "page"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

#: Other versions of argparse lay help out otherwise.
PYTHON = (3, 11)

_HEAD = """\
<!-- Written by `python tools/help_page.py`; change the parsers, not this file. -->

# Command reference

The help of each command. Usage: [rallypoint](../guides/cli.md), [rallypoint-agent](../guides/agent.md).
"""


def page() -> str:
    """Return the text of the page."""
    os.environ["COLUMNS"] = "100"
    os.environ["NO_COLOR"] = "1"
    return _HEAD + "".join(text for parser in (command_parser(), agent_parser()) for text in _sections(parser))


def main() -> int:
    """Write the page; return 0."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def _sections(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"\n## {parser.prog}\n\n```text\n{parser.format_help()}```\n"
    for action in parser._actions:  # noqa: SLF001 - there is no other list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, sub in action.choices.items():
                if sub.prog.endswith(f" {name}"):
                    yield from _sections(sub)


if __name__ == "__main__":
    sys.exit(main())
