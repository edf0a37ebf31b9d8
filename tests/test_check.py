"""`tools/check.py`: what runs beside what, what is run again, and how that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check

UNLUCKY = """
import pathlib
import pytest

@pytest.mark.parametrize("case", ["in the worker", "deferred"])
def test_of_luck(case):
    seen = pathlib.Path(__file__).with_name("seen")
    lucky = seen.exists()
    seen.touch()
    assert lucky, "said - with a dash"

def test_well():
    assert True
"""

BROKEN = "def test_broken():\n    assert False\n\ndef test_well():\n    assert True\n"


def outcome_of(folder: Path, text: str) -> check.Outcome:
    file = folder / "test_part.py"
    file.write_text(text)
    return check._seen("part", ("pytest", "-q", "-p", "no:cacheprovider", str(file)))


def test_what_fails_once_is_named_and_counted_as_a_rerun(tmp_path):
    """It passes, and whoever reads the table knows which test it was."""
    seen = outcome_of(tmp_path, UNLUCKY)

    assert seen.code == 0
    assert seen.said.startswith("1 rerun, 3 passed in ")
    assert [name.partition("::")[2] for name in seen.rerun] == ["test_of_luck[in the worker]"]
    assert any("passed only when run again" in line for line in check._table([seen], seen.seconds))


def test_what_fails_twice_has_failed(tmp_path):
    """The table says what the whole part said."""
    seen = outcome_of(tmp_path, BROKEN)

    assert (seen.code, seen.rerun) == (1, ())
    assert seen.said.startswith("1 failed, 1 passed in ")


def test_much_that_fails_is_not_run_again(tmp_path):
    """More than a few are no bad luck."""
    seen = outcome_of(tmp_path, "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_n(n):\n    assert False\n")

    assert (seen.code, len(seen.failed)) == (1, 4)


@pytest.mark.parametrize(
    ("said", "corrected"),
    [
        ("1 failed, 173 passed in 722.21s (0:12:02)", "1 rerun, 174 passed in 722.21s (0:12:02)"),
        ("2 failed, 5 passed, 1 skipped, 1 error in 9.0s", "3 rerun, 8 passed, 1 skipped in 9.0s"),
    ],
)
def test_a_closing_line_adds_up(said, corrected):
    """Nothing that was counted gets lost."""
    assert check._corrected(said) == corrected


#: Leaves a file, and waits for the one that the other leaves.
MEET = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
print("one")
print("two")
"""


def test_parts_of_one_core_run_side_by_side_and_the_others_after_them(tmp_path, capfd):
    """Two that wait for each other both end; what a part says stays together; who is alone begins when all of them are over."""
    here, there, over = (str(tmp_path / name) for name in ("here", "there", "over"))
    parts = [
        check.Part(name="alone", group="last", command=("python", "-c", MEET, over, over), alone=True),
        check.Part(name="first", group="lint", command=("python", "-c", MEET, here, there)),
        check.Part(name="second", group="lint", command=("python", "-c", MEET, there, here)),
        check.Part(name="third", group="lint", command=("python", "-c", "import sys; sys.exit(sys.argv[1])", "no")),
    ]

    seen = list(check._outcomes(parts))

    assert [(outcome.name, outcome.code) for outcome in seen] == [("first", 0), ("second", 0), ("third", 1), ("alone", 0)]
    assert capfd.readouterr().out.count("\none\ntwo\n") == 3
