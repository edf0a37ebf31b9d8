"""Reading ranks' lines out of a pod's log, and going on where one stopped."""

from __future__ import annotations

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.watching.logs import Listener, Places, parse_cursor
from rallypoint.wire.podlog import front


def told(at, rank, text, *, round_=1, stream="out"):
    return f"2026-01-02T03:04:{at}Z {front(round_, rank, stream)}{text}\n"


#: Three lines of rank 0 at one time, as a fast program writes them, and others between.
LOG = (
    told("05.1", 0, "a"),
    "2026-01-02T03:04:05.2Z the agent says something\n",
    told("05.25", 1, "b"),
    told("05.25", 0, "c"),
    told("05.25", 0, "d", stream="err"),
    told("05.25", 0, "e"),
    told("06", 1, "f", round_=2),
)


def heard(lines, attempt=1):
    listener = Listener(attempt)
    return [line for line in map(listener.hear, lines) if line is not None]


def texts(lines, places):
    return [places.take(line) for line in heard(lines) if places.is_new(line)]


def test_only_what_ranks_say_is_heard():
    """The agent's own lines are none of theirs, and a line that is not finished is kept back."""
    assert [line.text for line in heard((*LOG, told("07", 0, "g")[:-1]))] == ["a", "b", "c", "d", "e", "f"]


def test_reading_goes_on_after_any_line():
    """Wherever one stopped nothing is lost and nothing comes twice, though several lines have one time."""
    whole = texts(LOG, Places())
    for index, line in enumerate(whole):
        assert [each.text for each in texts(LOG, Places(line.cursor))] == [each.text for each in whole[index + 1 :]]


def test_reading_goes_on_from_the_beginning_of_a_second():
    """A log that was cut is asked for from a second on; lines of one time keep their numbers."""
    first = texts(LOG[:4], Places())[-1]
    rest = [line for line in LOG if line >= "2026-01-02T03:04:05"]

    assert [line.text for line in texts(rest, Places(first.cursor))] == ["d", "e", "f"]


def test_an_earlier_attempt_is_not_read_again():
    """A rank's lines of attempts and rounds before the one that was read are over."""
    places = Places()
    for line in heard(LOG, attempt=2):
        places.take(line)

    assert [line.text for line in heard(LOG, attempt=1) if places.is_new(line)] == []
    assert len([line for line in heard(LOG, attempt=3) if places.is_new(line)]) == 6


@pytest.mark.parametrize("cursor", [pytest.param("x", id="no cursor"), pytest.param("0=1.1.5.5", id="of another backend")])
def test_a_cursor_of_somebody_else_is_refused(cursor):
    """It names what was given."""
    with pytest.raises(BackendError, match="cursor: "):
        parse_cursor(cursor)


def test_times_without_a_fraction_come_in_order():
    """Container runtimes leave out zeros at the end; as text they would sort wrongly."""
    early, late = heard((told("05", 0, "a"), told("05.000001", 0, "b")))

    assert early.order < late.order
