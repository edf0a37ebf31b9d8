"""Each entry of docs/troubleshooting.md quotes a message that the code still has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def texts() -> str:
    """All string constants of the package, those inside f-strings too."""
    nodes = (
        node for path in (ROOT / "rallypoint").rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_the_page_has_enough_entries() -> None:
    """Each with its cause and the next step."""
    assert len(ENTRIES) >= 25
    assert PAGE.count("\n**Cause:** ") == PAGE.count("\n**Do:** ") == len(ENTRIES)


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry) for entry in ENTRIES])
def test_an_entry_quotes_a_message_of_the_code(texts: str, entry: str) -> None:
    """After a change of a message: change the heading of this entry in docs/troubleshooting.md."""
    missing = [part for part in (each.strip() for each in entry.split("…")) if part and part not in texts]

    assert missing == []
