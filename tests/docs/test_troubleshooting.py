"""Each entry of docs/troubleshooting.md quotes a message that the code still has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def texts() -> frozenset[str]:
    """All string constants of the package, except docstrings; "…" stands for the values of an f-string."""
    return frozenset(
        text for path in (ROOT / "rallypoint").rglob("*.py") for text in _texts(ast.parse(path.read_text("utf-8")))
    )


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def test_the_page_has_enough_entries() -> None:
    """Each with its cause and the next step."""
    assert len(ENTRIES) >= 25
    assert PAGE.count("\n**Cause:** ") == PAGE.count("\n**Do:** ") == len(ENTRIES)


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry) for entry in ENTRIES])
def test_an_entry_quotes_a_message_of_the_code(texts: frozenset[str], entry: str) -> None:
    """After a change of a message: change the heading of this entry in docs/troubleshooting.md."""
    assert [text for text in texts if entry in text] != []
