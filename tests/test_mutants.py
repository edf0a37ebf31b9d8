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
