"""The table of DLRover's arguments is made of the code, and names tests that are there."""

from __future__ import annotations

import re

import pytest

from rallypoint.capabilities import modules
from rallypoint.job.arguments import ARGUMENTS
from tools import arguments_page
from tools.arguments_page import DIFFERENCES, PAGE, ROOT, marked, page


def test_the_committed_page_is_up_to_date():
    """`python tools/arguments_page.py` was run after the last change."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_argument_and_every_difference_has_a_test():
    """By a marker, which names nothing else either."""
    assert set(ARGUMENTS) == set(marked("argument"))
    assert set(DIFFERENCES) == set(marked("difference"))
    assert len(DIFFERENCES) == 15 + sum(len(module.DIFFERENCES) for module in modules("arguments"))


def test_an_argument_without_a_test_is_an_error(monkeypatch):
    """Nobody has to remember it."""
    monkeypatch.setattr(arguments_page, "marked", lambda _: {})

    with pytest.raises(LookupError, match="without a test are"):
        page()


def test_every_test_that_is_named_is_there():
    """In the file that the link leads to."""
    links = re.findall(r"\[(test_\w+)\]\(\.\./\.\./([\w/.]+)\)", PAGE.read_text(encoding="utf-8"))

    assert len(links) > 40
    for name, path in set(links):
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
