"""`tools/structure.py` on a package of a few lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import structure

PLAN = '''"""Doc.

More of it.
"""

from rallypoint.wire import codec


class Plan:
    name: str
    nodes: int = 1
'''

CODEC = """# a comment about hang


def encode(value):
    from rallypoint import plan

    return plan.Plan, value
"""

HANG = """def find_hang():
    return (
        1
    )
"""

FILES = {"__init__.py": "", "plan.py": PLAN, "wire/__init__.py": "", "wire/codec.py": CODEC, "hang.py": HANG}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with these files."""
    for name, text in FILES.items():
        path = tmp_path / "rallypoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_code_lines_have_no_comments_docstrings_or_blank_lines(tree):
    """4 lines in plan, 3 in codec, 4 in hang."""
    assert {module.path.name: structure.code_lines(module) for module in structure.read(tree) if module.text} == {
        "plan.py": 4,
        "codec.py": 3,
        "hang.py": 4,
    }


def test_an_import_inside_a_function_closes_a_circle(tree):
    """Plan imports codec at the top, codec imports plan in a function."""
    modules = {module.name: module.imports for module in structure.read(tree)}

    assert list(structure.import_circles(modules)) == [frozenset({"rallypoint.plan", "rallypoint.wire.codec"})]


def test_a_capability_has_the_files_that_use_its_words(tree):
    """A word in a comment does not count."""
    assert [path.name for path in structure.files_of(structure.read(tree), "hang")] == ["hang.py"]


def test_fields_are_counted_by_class_and_place(tree):
    """The class is named, and its module's path has the given part."""
    modules = structure.read(tree)

    assert (structure.fields(modules, "Plan", "plan"), structure.fields(modules, "Plan", "elsewhere")) == (2, 0)


def test_every_figure_is_printed(tree, capsys, monkeypatch):
    """A line each."""
    monkeypatch.setattr("sys.argv", ["structure.py", "--tree", str(tree)])

    assert structure.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == len(structure.measure(tree))


def test_no_modules_of_the_package_import_each_other():
    """Neither at the top, nor in a function, nor for types alone."""
    modules = {module.name: module.imports for module in structure.read(structure.ROOT)}

    assert [sorted(circle) for circle in structure.import_circles(modules)] == []
