"""The docs of operators and sensors show what the example DAGs have, and the examples are those that the suite runs."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "example_snippets.py"))
PAGES = TOOL["PAGES"]


@pytest.fixture(scope="module")
def written():
    """What `make docs` would write."""
    return TOOL["files"]()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_its_examples_as_they_are(written, page):
    """`make docs` would change nothing."""
    assert written[page] == (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_an_example(page):
    """Each operator, the decorator, and each sensor."""
    assert "<!-- example: dags_examples/" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["rallypoint.operators", "rallypoint.sensors"])
def test_whatever_a_dag_can_use_has_a_page(package):
    """Its title is the name, and the index leads to it."""
    room = package.rpartition(".")[2]
    titles = {(ROOT / page).read_text(encoding="utf-8").partition("\n")[0]: page for page in PAGES}
    index = (ROOT / "docs" / "reference" / f"{room}.md").read_text(encoding="utf-8")
    used = [name for name in importlib.import_module(package).__all__ if name.endswith(("Operator", "Sensor"))]

    assert used
    assert [name for name in used if titles.get(f"# `{name}`", "").removeprefix("docs/reference/") not in index] == []
    assert [name for name in used if f"# `{name}`" not in titles] == []


def test_no_marker_is_left_over():
    """What an example marks is shown somewhere."""
    shown = set(re.findall(r"<!-- example: (\S+ \S+) -->", "".join((ROOT / page).read_text() for page in PAGES)))
    marked = {
        f"dags_examples/{path.name} {marker}"
        for path in (ROOT / "dags_examples").glob("*.py")
        for marker in re.findall(r"# \[START (\S+)\]", path.read_text())
    }

    assert marked == shown
