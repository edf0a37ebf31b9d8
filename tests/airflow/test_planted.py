"""The search for secrets finds what is there: otherwise it would never find anything."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

from tests.airflow.further import Look
from tests.airflow.planted import found_in_database, found_in_files, found_in_titles
from tests.airflow.report import page
from tests.airflow.test_matrix import DATE
from tests.waiting import eventually

WORDS = ("canary-1", "canary-2")


def test_a_word_is_found_in_any_column_of_any_table(tmp_path: Path) -> None:
    """In text, in JSON and in bytes."""
    file = tmp_path / "some.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table plain (id integer, words text)")
        connection.execute("create table packed (data blob)")
        connection.execute("create table clean (words text)")
        connection.execute("insert into plain values (1, ?)", ('{"token": "canary-1"}',))
        connection.execute("insert into packed values (?)", (b"\x00canary-2\x00",))
        connection.execute("insert into clean values ('nothing')")
    connection.close()

    assert found_in_database(f"sqlite:///{file}", WORDS) == {"plain": {"canary-1"}, "packed": {"canary-2"}}


def test_a_word_is_found_in_any_file(tmp_path: Path) -> None:
    """However deep it is."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "log").write_bytes(b"\xff canary-2 and canary-1")
    (tmp_path / "clean").write_text("nothing")

    assert found_in_files(tmp_path, WORDS) == {"a/b/log": set(WORDS)}


def test_a_word_is_found_among_the_arguments_of_a_process() -> None:
    """Anybody on the machine can read those."""
    word = "canary-of-a-process-of-this-test"
    with subprocess.Popen([sys.executable, "-c", "input()", word], stdin=subprocess.PIPE) as process:
        assert eventually(lambda: found_in_titles((word,)))
        process.communicate(b"\n")


def test_the_page_tells_of_looks_that_no_kill_shows() -> None:
    """And says which of them did not go as it must."""
    good = Look(name="secrets stay", seen="none was found", seconds=3.0)
    bad = Look(name="a hang", seen="", seconds=4.0, wrong="nobody noticed")

    text = page([], [good, bad], database="", bystander="", now=DATE)

    assert "| secrets stay | none was found | yes | 3 |" in text
    assert "| a hang | not as expected | **no** | 4 |" in text
    assert "no kill shows" not in page([], database="", bystander="", now=DATE)
