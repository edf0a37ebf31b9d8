"""`tools/mutants.py`: which places it changes, and how."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutants

SOURCE = '''
LIMIT = 3

def late(now, due):
    """1 is not changed here."""
    if not due or now < due:
        return False
    return f"{now == 1}"
'''


def test_each_place_of_a_function_has_one_mutant():
    """Comparisons, `and` and `or`, `not`, numbers and truth values; module constants and texts for people have none."""
    found = [(mutant.before, mutant.after) for mutant in mutants.mutants(SOURCE, Path("late.py"))]

    assert found == [
        ("not due or now < due", "not due and now < due"),
        ("not due", "not not due"),
        ("now < due", "now <= due"),
        ("False", "True"),
    ]


@pytest.mark.parametrize("index", range(4))
def test_a_mutated_file_differs_in_one_place(index):
    """It is valid Python, and the mutant's text is in it."""
    expected = list(mutants.mutants(SOURCE, Path("late.py")))[index]

    text = mutants.mutated(SOURCE, index)

    ast.parse(text)
    assert expected.after in text
    assert text != ast.unparse(ast.parse(SOURCE))


def test_a_seed_draws_the_same_mutants_again(tmp_path):
    """Different ones each, and no more than there are."""
    folder = tmp_path / "rallypoint" / "supervision"
    folder.mkdir(parents=True)
    (folder / "late.py").write_text(SOURCE)

    once, twice = (mutants.draw(tmp_path, ["supervision"], seed=7, count=3) for _ in range(2))

    assert once == twice
    assert len({mutant.index for mutant in once}) == 3
    assert len(mutants.draw(tmp_path, ["supervision"], seed=7, count=99)) == 4


def test_a_change_elsewhere_does_not_change_the_draw(tmp_path):
    """Neither another function above, nor another name of the module."""
    drawn = []
    for name, text in (("late.py", SOURCE), ("later.py", f"\ndef other():\n    return 1\n{SOURCE}")):
        folder = tmp_path / name / "rallypoint" / "supervision"
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
        found = mutants.draw(tmp_path / name, ["supervision"], seed=7, count=99)
        drawn.append([mutant.key for mutant in found if not mutant.key.startswith("other ")])

    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4


def test_files_that_name_the_module_run_first(tmp_path):
    """Then the tests of its folder without them, then all others, and on request those with real processes."""
    texts = {
        "tests/supervision/test_late.py": "from rallypoint.supervision import clocks, late\n",
        "tests/cli/test_view.py": "from rallypoint.supervision.late import DUE\n",
        "tests/cli/test_other.py": "from rallypoint.supervision import latest\n",
        "tests/live/test_jobs.py": "from rallypoint.supervision import late\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (mutant,) = mutants.mutants("def late():\n    return 1\n", Path("rallypoint/supervision/late.py"))

    naming, near, others, live = mutants.parts(tmp_path, mutant, live=True)

    assert naming == ["tests/cli/test_view.py", "tests/supervision/test_late.py"]
    assert near == ["tests/supervision", *(f"--ignore={path}" for path in naming)]
    assert others == ["tests", *(f"--ignore={path}" for path in (*mutants.APART, *naming, "tests/supervision"))]
    assert live == ["tests/live", "tests/cluster"]
