from __future__ import annotations

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rallypoint.supervision.reconcile import TRANSITIONS

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "states.svg"


@pytest.fixture(scope="module")
def tool():
    """The tool that draws the picture; `tools` is no package."""
    return runpy.run_path(str(ROOT / "tools" / "states.py"))


def _drawn(svg):
    """Return every arrow of a picture as (from, to); one arrow may come from many."""
    arrows = [item for item in ET.fromstring(svg).iter() if "data-to" in item.attrib]
    return [(source, arrow.attrib["data-to"]) for arrow in arrows for source in arrow.attrib["data-from"].split()]


def test_the_picture_in_the_docs_shows_the_table():
    """Every transition of the table is an arrow of the picture, once, and nothing else is."""
    table = [(source.value or "Empty", target.value) for source, targets in TRANSITIONS.items() for target in targets]

    assert sorted(_drawn(PICTURE.read_text(encoding="utf-8"))) == sorted(table)


def test_the_picture_in_the_docs_is_what_the_tool_draws(tool):
    """`make docs` would change nothing."""
    assert PICTURE.read_text(encoding="utf-8") == tool["draw"]()


def test_every_transition_has_its_words(tool):
    """Each arrow says why it is taken, and no words are left of an arrow that is gone."""
    routes = {(source, target) for source, target in tool["_ROUTES"]}
    to_draw = {(s, t) for s, targets in TRANSITIONS.items() for t in targets if t.value != "Terminating"}

    assert routes == to_draw


def test_the_tool_writes_where_it_is_told(tool, tmp_path):
    """A file of one's own can be named."""
    target = tmp_path / "deep" / "states.svg"

    assert tool["main"]([str(target)]) == 0
    assert target.read_text(encoding="utf-8") == tool["draw"]()
