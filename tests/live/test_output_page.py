"""docs/reference/output.md shows what the commands print."""

from __future__ import annotations

import pytest

from tools import output_page


@pytest.mark.extended
def test_the_committed_page_is_what_the_commands_print() -> None:
    """Help, a recovery in the log, an explained job, a failed task. Processes that run at once log in any order."""
    committed = output_page.PAGE.read_text(encoding="utf-8")

    assert sorted(output_page.page().splitlines()) == sorted(committed.splitlines())
