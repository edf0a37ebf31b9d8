"""Durations as people write them."""

from __future__ import annotations

import contextlib
import datetime as dt
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rallypoint.job import parse_duration
from rallypoint.job.duration import DurationError, format_duration
from rallypoint.wire.errors import RallypointError

DAY = 86400.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        pytest.param("90s", 90.0, id="seconds"),
        pytest.param("1h30m", 5400.0, id="compound"),
        pytest.param("7d", 7 * DAY, id="days"),
        pytest.param("1d2h3m4.5s", DAY + 7384.5, id="all units with decimals"),
        pytest.param("1.5h", 5400.0, id="decimal hours"),
        pytest.param(".5s", 0.5, id="no digit before the point"),
        pytest.param("1.s", 1.0, id="no digit after the point"),
        pytest.param("300ms", 0.3, id="milliseconds"),
        pytest.param("5us", 5e-6, id="microseconds"),
        pytest.param("5\u00b5s", 5e-6, id="micro sign"),
        pytest.param("5\u03bcs", 5e-6, id="Greek mu"),
        pytest.param("10ns", 1e-8, id="nanoseconds"),
        pytest.param("30m1h", 5400.0, id="any order, as in Go"),
        pytest.param("1m1m", 120.0, id="a unit twice, as in Go"),
        pytest.param("+5s", 5.0, id="plus sign"),
        pytest.param(" 5s ", 5.0, id="white space around"),
        pytest.param("0.1s0.2s", 0.3, id="sums are exact"),
        pytest.param("PT1M30S", 90.0, id="ISO 8601 time"),
        pytest.param("P1DT2H", DAY + 7200, id="ISO 8601 date and time"),
        pytest.param("P2W", 14 * DAY, id="ISO 8601 weeks"),
        pytest.param("PT1,5S", 1.5, id="ISO 8601 decimal comma"),
        pytest.param("PT0.25H", 900.0, id="ISO 8601 decimal hours"),
        pytest.param(90, 90.0, id="int of seconds"),
        pytest.param(1.5, 1.5, id="float of seconds"),
        pytest.param("90", 90.0, id="text of seconds"),
        pytest.param("1.5", 1.5, id="text of decimal seconds"),
        pytest.param("1e3", 1000.0, id="text with an exponent"),
        pytest.param(0, 0.0, id="zero"),
        pytest.param("0", 0.0, id="zero as text"),
        pytest.param(dt.timedelta(minutes=1, milliseconds=500), 60.5, id="timedelta"),
    ],
)
def test_a_duration_is_read_as_seconds(value, seconds):
    """Go's form, ISO 8601, numbers and timedelta all become float seconds."""
    parsed = parse_duration(value)

    assert parsed == seconds
    assert isinstance(parsed, float)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("-5s", id="negative"),
        pytest.param(-1, id="negative int"),
        pytest.param("-1", id="negative text"),
        pytest.param(dt.timedelta(seconds=-1), id="negative timedelta"),
        pytest.param(True, id="bool"),
        pytest.param(None, id="null"),
        pytest.param([90], id="list"),
        pytest.param("", id="empty"),
        pytest.param("s", id="unit alone"),
        pytest.param("5 parsecs", id="unknown unit"),
        pytest.param("5S", id="unit in capitals"),
        pytest.param("1h 30m", id="white space inside"),
        pytest.param("1h30", id="number without unit in a compound"),
        pytest.param("1,5s", id="decimal comma outside of ISO 8601"),
        pytest.param("P1Y", id="a year has no fixed length"),
        pytest.param("P1M", id="a month has no fixed length"),
        pytest.param("P", id="ISO 8601 without parts"),
        pytest.param("PT", id="ISO 8601 without time"),
        pytest.param("P1DT", id="ISO 8601 with an empty time"),
        pytest.param("inf", id="infinite text"),
        pytest.param("1e999", id="beyond every float"),
        pytest.param("9" * 99 + "d" * 5, id="digits and units that do not end"),
        pytest.param("1" * 5000, id="far too long"),
        pytest.param(10**400, id="int beyond every float"),
        pytest.param(math.inf, id="infinite"),
        pytest.param(math.nan, id="not a number"),
        pytest.param("\u0661s", id="digits of another script"),
    ],
)
def test_what_is_no_duration_is_refused(value):
    """Everything else is an error, never a guess."""
    with pytest.raises(DurationError):
        parse_duration(value)


def test_the_error_names_the_value_and_what_is_allowed():
    """The error is a ValueError and one of ours, and says how to write a duration."""
    with pytest.raises(ValueError) as caught:
        parse_duration("soon")

    assert isinstance(caught.value, RallypointError)
    assert str(caught.value) == (
        "'soon' is not a duration; expected 90s, 1h30m, 7d, 300ms, PT1M30S or a number of seconds, 0 or more"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(0, "0s", id="zero"),
        pytest.param(90, "1m30s", id="minutes and seconds"),
        pytest.param(600, "10m", id="zero parts are left out"),
        pytest.param(5400, "1h30m", id="hours"),
        pytest.param(7 * DAY, "7d", id="days"),
        pytest.param(DAY + 0.5, "1d0.5s", id="decimal rest"),
        pytest.param(0.3, "300ms", id="milliseconds"),
        pytest.param(0.0015, "1.5ms", id="decimal milliseconds"),
        pytest.param(2.5e-7, "250ns", id="nanoseconds"),
        pytest.param(1e-12, "1e-12", id="too small for a unit"),
        pytest.param(1e300, "1e+300", id="too large for a unit"),
    ],
)
def test_seconds_are_written_as_a_person_would(seconds, text):
    """The shortest compound, or a plain number where no compound is short."""
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
@example(0.1 + 0.2)
@example(5400.1)
@example(1e15)
@example(1e-9)
@example(5e-324)
def test_every_duration_reads_back_as_itself(seconds):
    """format_duration loses nothing."""
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_both_notations_agree(days, hours, minutes, seconds):
    """Go's form, ISO 8601 and timedelta of the same parts are the same duration."""
    expected = dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)

    assert parse_duration(f"{days}d{hours}h{minutes}m{seconds}s") == expected.total_seconds()
    assert parse_duration(f"P{days}DT{hours}H{minutes}M{seconds}S") == expected.total_seconds()
    assert parse_duration(expected) == expected.total_seconds()


@given(st.text() | st.from_regex(r"\A[0-9.]{0,4}[a-zPT]{0,3}[0-9]{0,3}[smhd]?\Z"))
def test_any_text_is_a_duration_or_a_clear_error(text):
    """No text leads to another exception, nor to a number that is negative or infinite."""
    with contextlib.suppress(DurationError):
        assert 0 <= parse_duration(text) < math.inf
