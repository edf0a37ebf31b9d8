"""The docs of operators and sensors show what the example DAGs have, and the examples are those that the suite runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/operators.md", "docs/sensors.md")


@pytest.fixture(scope="module")
def written():
    """What `make docs` would write."""
    return runpy.run_path(str(ROOT / "tools" / "example_snippets.py"))["files"]()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_its_examples_as_they_are(written, page):
    """`make docs` would change nothing."""
    assert written[page] == (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_section_of_a_thing_to_use_has_an_example(page):
    """Each operator, the decorator, and each sensor."""
    text = (ROOT / page).read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `(.+?)`\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))

    assert sections
    assert [name for name, body in sections.items() if "<!-- example: dags_examples/" not in body] == []


def test_no_marker_is_left_over():
    """What an example marks is shown somewhere."""
    shown = set(re.findall(r"<!-- example: (\S+ \S+) -->", "".join((ROOT / page).read_text() for page in PAGES)))
    marked = {
        f"dags_examples/{path.name} {marker}"
        for path in (ROOT / "dags_examples").glob("*.py")
        for marker in re.findall(r"# \[START (\S+)\]", path.read_text())
    }

    assert marked == shown
