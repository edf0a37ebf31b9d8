"""The table of docs/guides/mindcluster.md: each test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFAULT = "tests/live/test_mindcluster.py"


def test_each_test_that_the_page_names_exists() -> None:
    """Also the other way round: each live test of the profile stands in the table."""
    page = (ROOT / "docs" / "guides" / "mindcluster.md").read_text()
    table = page.partition("<!-- tests: checked")[2].partition("\n## ")[0]
    named = {(path or DEFAULT, name) for name, path in re.findall(r"`(test_\w+)`(?: in `(tests/[\w/.]+)`)?", table)}
    exists = {(path, name) for path in {path for path, _ in named} for name in functions(path)}

    assert named, "the table is there"
    assert named <= exists
    assert {name for path, name in named if path == DEFAULT} == set(functions(DEFAULT))


def functions(path: str) -> list[str]:
    tree = ast.parse((ROOT / path).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
