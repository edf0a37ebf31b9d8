"""`tools/check.py`: which parts it runs, which side by side, and what it counts."""

from __future__ import annotations

from tools import check


def test_a_failed_test_fails_its_part(tmp_path):
    """Nothing is run twice: the table repeats pytest's closing line, and the exit code is pytest's."""
    file = tmp_path / "test_part.py"
    file.write_text("def test_broken():\n    assert False\n\ndef test_well():\n    assert True\n")

    outcome = check._run("part", ("pytest", "-q", "-p", "no:cacheprovider", str(file)))

    assert outcome.code == 1
    assert outcome.said.startswith("1 failed, 1 passed in ")
    assert check._closing([outcome])[0] == "FAILED: part"


def test_extended_tests_run_on_request_only():
    """`make test` leaves out tests marked `extended` and the real Airflow; `make test-all` leaves out nothing."""
    quick, everything = check.chosen((), extended=False), check.chosen((), extended=True)

    assert [part.name for part in everything] == [part.name for part in check.PARTS]
    assert [part.name for part in everything if part not in quick and part.command[0] != "pytest"] == ["real Airflow"]
    assert all(part.command[-2:] == ("-m", "not extended") for part in quick if part.command[0] == "pytest")


def test_a_named_group_runs_whether_it_is_extended_or_not():
    """`tools/check.py airflow` runs the real Airflow."""
    assert [part.name for part in check.chosen(["airflow"], extended=False)] == ["real Airflow"]


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


def test_every_test_file_is_in_one_part_of_make_test_all():
    """Folders and files that a part names exist, and what one part names the others leave out."""
    named = [word for part in check.PARTS if part.command[0] == "pytest" for word in part.command if word.startswith("tests/")]
    (others,) = [part.command for part in check.PARTS if part.name == "unit: others"]
    (live,) = [part.command for part in check.PARTS if part.name == "live tests"]

    assert all((check.ROOT / path).exists() for path in named)
    assert len(named) == len(set(named))
    for path in named:
        assert f"--ignore={path}" in (live if path in check.AIRFLOW else others)
