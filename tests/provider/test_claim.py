from __future__ import annotations

import json

import pytest

from rallypoint.provider.claim import End, Ending
from rallypoint.report.story import story_of
from rallypoint.report.summary import summarize
from rallypoint.wire.codec import WireError
from tests.provider.records import succeeded


def test_an_ending_travels_as_json():
    """What the trigger found arrives in the resumed task as it was."""
    ending = Ending(
        end=End.SUCCEEDED, name="digits", summary=summarize(story_of(succeeded(), None, now=200.0)), text="well done"
    )

    assert Ending.from_event(json.loads(json.dumps(ending.to_event()))) == ending


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(None, id="no event"),
        pytest.param({"end": "exploded", "name": "digits"}, id="an unknown end"),
        pytest.param({"end": "failed"}, id="no name"),
    ],
)
def test_what_is_no_ending_is_refused(event):
    """Half an event is worse than none."""
    with pytest.raises(WireError, match="event"):
        Ending.from_event(event)
