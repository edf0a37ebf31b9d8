"""Cursors of logs: how far each rank was read."""

from __future__ import annotations

import pytest

from rallypoint.backends.cursors import MAX_CURSOR, Cursors, read_places


class Place:
    """A place that counts how often its text is formed."""

    spelled = 0

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        Place.spelled += 1
        return self._text


def test_each_cursor_names_all_ranks_as_they_were_after_its_line():
    """Also after later lines, and beyond the lines after which a new starting point is stored."""
    cursors = Cursors({7: "seven"})
    taken = [cursors.move(number % 3, f"at-{number}") for number in range(2500)]

    assert str(taken[0]) == "0=at-0;7=seven"
    assert str(taken[1]) == "0=at-0;1=at-1;7=seven"
    assert str(taken[999]) == "0=at-999;1=at-997;2=at-998;7=seven"
    assert str(taken[1000]) == "0=at-999;1=at-1000;2=at-998;7=seven"
    assert str(taken[-1]) == str(cursors.now()) == "0=at-2499;1=at-2497;2=at-2498;7=seven"
    assert str(Cursors(read_places(str(taken[1]), 8, str)).now()) == str(taken[1])


def test_lines_of_many_ranks_form_no_texts():
    """A script can forge lines of thousands of ranks; a text for each line would be lines times ranks."""
    Place.spelled = 0
    cursors = Cursors({})
    taken = [cursors.move(rank, Place("x")) for rank in range(4000)]
    assert Place.spelled == 0

    assert str(taken[-1]).count(";") == 3999
    assert Place.spelled == 4000


def test_a_cursor_names_ranks_of_the_job_only():
    """A text that another task wrote may name any number of ranks."""
    assert read_places("0=a;7=b;8=c;999999999=d", 8, str) == {0: "a", 7: "b"}
    assert read_places("", 8, str) == {}


@pytest.mark.parametrize(
    ("cursor", "why"),
    [
        pytest.param("x" * 1000, "^cursor: .{80,120} is not allowed", id="no place"),
        pytest.param("1234567890=a", "is not allowed", id="a huge rank"),
        pytest.param("\u0663=a", "is not allowed", id="a digit of another script"),
        pytest.param(";", "cursor: '' is not allowed", id="an empty part"),
        pytest.param("0=a;" * MAX_CURSOR, f"expected at most {MAX_CURSOR}", id="too long"),
    ],
)
def test_another_text_is_refused_in_a_short_error(cursor, why):
    """It names what was given, or its size."""
    with pytest.raises(ValueError, match=why) as refused:
        read_places(cursor, 8, str)
    assert len(str(refused.value)) < 200
