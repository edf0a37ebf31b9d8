"""docs/reference/cli.md shows the help of every command as it is."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "help_page.py"))


@pytest.mark.skipif(sys.version_info[:2] != TOOL["PYTHON"], reason="argparse lays help out otherwise")
def test_the_page_is_up_to_date(monkeypatch):
    """`make docs` changes nothing."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    assert TOOL["page"]() == TOOL["PAGE"].read_text(encoding="utf-8")


def test_every_command_has_a_section():
    """With all its options."""
    text = TOOL["PAGE"].read_text(encoding="utf-8")

    for command in ("rallypoint submit", "rallypoint explain", "rallypoint-agent run"):
        assert f"\n## {command}\n" in text
