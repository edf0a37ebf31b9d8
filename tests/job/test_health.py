"""The two arguments of hang detection, as DLRover's reference has them."""

from __future__ import annotations

import datetime as dt

import pytest

from rallypoint.job.errors import JobError
from rallypoint.job.model import load_job


def health(**fields: object) -> dict[str, object]:
    document = load_job({"name": "digits", "entrypoint": "train.py", "health": fields}).to_document()
    told: dict[str, object] = document["health"]
    return told


def test_the_defaults_are_those_of_the_reference() -> None:
    """30 minutes, and whoever is interested is told."""
    assert (health()["hang_downtime"], health()["hang_detection"]) == ("30m", 1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(30, "30m", id="a number is minutes"),
        pytest.param("5", "5m", id="so is one that a template rendered"),
        pytest.param(0, "0s", id="0 is off"),
        pytest.param("90s", "1m30s", id="a duration may be shorter"),
        pytest.param("PT2M", "2m", id="in any form"),
        pytest.param(dt.timedelta(seconds=30), "30s", id="from Python"),
    ],
)
def test_hang_downtime_is_minutes_or_a_duration(given: object, expected: str) -> None:
    """And the canonical form is read as what it was written from."""
    written = health(hang_downtime=given)["hang_downtime"]

    assert written == expected
    assert health(hang_downtime=written)["hang_downtime"] == expected


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"hang_downtime": -1}, "whole number of minutes of 0 or more", id="negative"),
        pytest.param({"hang_downtime": 1.5}, "whole number of minutes", id="a part of a minute without a unit"),
        pytest.param({"hang_downtime": "1.5"}, "whole number of minutes", id="and as text"),
        pytest.param({"hang_downtime": True}, "whole number of minutes", id="a flag"),
        pytest.param({"hang_downtime": None}, "whole number of minutes", id="nothing"),
        pytest.param({"hang_detection": 3}, "one of 0, 1, 2", id="an action that is none"),
        pytest.param({"hang_detection": "on"}, "one of 0, 1, 2", id="a word"),
    ],
)
def test_everything_else_is_an_error_that_says_what_is_allowed(fields: dict[str, object], said: str) -> None:
    """Nothing is rounded, and no number is taken for seconds."""
    with pytest.raises(JobError, match=said):
        health(**fields)
