"""`tools/language.py` finds expressions to avoid, counts words and draws the same sample for a seed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "language.py"))


def test_the_rates_of_words_are_within_their_limits(capsys):
    """In docs, README and help."""
    assert TOOL["main"](["count"]) == 0, capsys.readouterr().out


def test_errors_and_log_lines_are_found():
    """Each value of an f-string or format is shown by its name, as in a usage line."""
    texts = list(TOOL["messages"]())

    assert {"error", "log"} == {text.kind for text in texts}
    assert len(texts) > 300
    assert "worker rank=<rank> cannot recover in place (<why>); after a fault, a new process replaces it" in {
        text.text for text in texts
    }
    assert not [text for text in texts if "%s" in text.text or "…" in text.text]


def test_an_expression_to_avoid_is_found_outside_of_code():
    """Names in back quotes are left out."""
    habit = TOOL["_HABIT"]

    assert habit.search("nobody supervises the job")
    assert habit.search("At the most 3")
    assert habit.search("the storeroom and the headroom") is None


def test_a_sentence_ends_at_a_full_stop_outside_of_code():
    """Neither a colon, nor a code span or brackets with a full stop, cuts a sentence into fragments."""
    page = "Set `a: {b: c. D}`: Then the job starts (see Y. Z). With N: `n` of the attempts end."
    text = TOOL["Text"](kind="docs", place="page", text=page)

    assert [sentence.text for sentence in TOOL["sentences"](iter([text]))] == [
        "Set `a: {b: c. D}`: Then the job starts (see Y. Z).",
        "With N: `n` of the attempts end.",
    ]


def test_a_seed_draws_the_same_sample(capsys):
    """With sentences of all four kinds."""
    outputs = []
    for _ in range(2):
        assert TOOL["main"](["sample", "12", "--seed", "3"]) == 0
        outputs.append(capsys.readouterr().out)

    assert outputs[0] == outputs[1]
    assert {line.split()[1] for line in outputs[0].splitlines()} == {"docs", "error", "help", "log"}


@pytest.mark.extended
def test_docstrings_and_comments_are_drawn_with_their_code(capsys):
    """A comment of several lines is one text; a remark for a linter is none."""
    source = 'x = 1  # so much\n# first line\n# second line\nprint(x)  # noqa: T201\n#: a table\ny = "# no comment"\n'
    found = {text.text: text.beside for text in TOOL["_comments"]("m.py", source)}
    assert found == {
        "so much": "x = 1",
        "first line second line": "print(x)  # noqa: T201",
        "a table": 'y = "# no comment"',
    }

    assert TOOL["main"](["sample", "20", "--code", "--seed", "7"]) == 0
    drawn = re.findall(r"^ *\d+ (docstring|comment) ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(drawn) == ["comment"] * 10 + ["docstring"] * 10


def test_a_sentence_comes_with_what_its_reader_sees_beside_it():
    """Its heading, the line that introduces its list, and the row and column of its cell."""
    page = "# Pods\n\n## Retries\n\nA pod is replaced in these cases:\n\n- its node is down;\n\n"
    page += "| Case | Effect |\n|---|---|\n| lost | new pod |\n"

    assert [(text.heading, text.beside, text.text) for text in TOOL["_page"]("page.md", page)] == [
        ("", "heading", "Pods"),
        ("", "heading", "Retries"),
        ("Retries", "", "A pod is replaced in these cases:"),
        ("Retries", "A pod is replaced in these cases:", "its node is down;"),
        ("Retries", "column", "Case"),
        ("Retries", "column", "Effect"),
        ("Retries", "Case", "lost"),
        ("Retries", "lost | Effect", "new pod"),
    ]


def test_too_many_words_of_docs_are_an_error(capsys):
    """The generated reference does not count."""
    assert TOOL["main"](["count", "--limit", "35000"]) == 0
    assert TOOL["main"](["count", "--limit", "10"]) == 1
    assert "(at most 10) without the generated reference, which is:\n  docs/reference/" in capsys.readouterr().out
