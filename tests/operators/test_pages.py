"""The reference of operators and sensors is complete and up to date."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "operators_page.py"))
PAGES = TOOL["PAGES"]


@pytest.fixture(scope="module")
def written():
    """The pages that `make docs` would write."""
    return TOOL["pages"]()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_up_to_date(written, page):
    """`make docs` changes nothing."""
    assert written[page] == (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["rallypoint.operators", "rallypoint.sensors"])
def test_each_class_that_a_dag_can_import_has_a_section(written, package):
    """With an example."""
    page = written[f"docs/reference/{package.rpartition('.')[2]}.md"]
    used = [name for name in importlib.import_module(package).__all__ if name.endswith(("Operator", "Sensor"))]

    assert used
    for name in used:
        section = page.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        assert "```python" in section, name


def test_a_parameter_without_a_description_is_an_error():
    """And so is a description without a parameter."""

    class Undocumented:
        """Run.

        :param known: a value.
        """

        def __init__(self, *, known: int, other: int) -> None:
            self.values = known, other

    class Outdated:
        """Run.

        :param known: a value.
        :param gone: another value.
        """

        def __init__(self, *, known: int) -> None:
            self.value = known

    with pytest.raises(LookupError, match=r"Undocumented: .*\['other'\]"):
        TOOL["parameters"](Undocumented)
    with pytest.raises(LookupError, match=r"Outdated: .*\['gone'\]"):
        TOOL["parameters"](Outdated)


def test_every_marked_part_of_an_example_is_shown(written):
    """No marker of an example DAG is left over."""
    shown = set(re.findall(r"dags_examples/(\S+)\) \(`(\w+)`\)", "".join(written.values())))
    marked = {
        (path.name, marker)
        for path in (ROOT / "dags_examples").glob("*.py")
        for marker in re.findall(r"# \[START (\S+)\]", path.read_text())
    }

    assert marked == shown
