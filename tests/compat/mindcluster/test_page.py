"""The table of tests/compat/mindcluster/README.md: each test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
DEFAULT = "tests/live/test_mindcluster.py"
WHOLE = (DEFAULT, "tests/live/test_mindcluster_words.py", "tests/cluster/test_mindcluster.py")

#: One test or more, and the file that they are in.
LISTED = r"(`test_\w+`(?:, `test_\w+`)*)(?: in `(tests/[\w/.]+)`)?"


def test_each_test_that_the_page_names_exists() -> None:
    """Also the other way round: each live test of the profile stands in the table."""
    page = (ROOT / "tests" / "compat" / "mindcluster" / "README.md").read_text()
    table = page.partition("<!-- tests: checked")[2].partition("\n## ")[0]
    files = [(words, path or DEFAULT) for words, path in re.findall(LISTED, table)]
    named = {(path, name) for words, path in files for name in re.findall(r"test_\w+", words)}
    exists = {(path, name) for path in {path for path, _ in named} for name in functions(path)}

    assert named, "the table is there"
    assert named <= exists
    assert {(path, name) for path in WHOLE for name in functions(path)} <= named


def functions(path: str) -> list[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.name for node in functions if node.name.startswith("test_")]
