"""Neighbouring versions understand each other, others are refused by one error."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rallypoint.wire import codec
from rallypoint.wire.messages import MESSAGES_VERSION, AgentReport, Continue, reply_from_json, reply_to_json
from rallypoint.wire.plan import PLAN_VERSION, Plan
from rallypoint.wire.roster import AgentAddress, Roster
from rallypoint.wire.sections import Sections
from rallypoint.wire.status import STATUS_VERSION, JobStatus
from tests.wire.test_codec import FENCE, PLAN, REPORT, STATUS

ROSTER = Roster(attempt=1, term=1, agents=(AgentAddress(node=0, incarnation=1, host="10.0.0.1"),))

WORDS = [
    pytest.param(PLAN, PLAN_VERSION, id="plan"),
    pytest.param(REPORT, MESSAGES_VERSION, id="report"),
    pytest.param(ROSTER, MESSAGES_VERSION, id="roster"),
    pytest.param(STATUS, STATUS_VERSION, id="status"),
]

Word = Plan | AgentReport | Roster | JobStatus


def as_written(word: object, **more: object) -> dict[str, Any]:
    return {**json.loads(codec.dumps(word)), **more}


def with_unknown(word: Any, unknown: dict[str, Any]) -> Any:
    return dataclasses.replace(word, sections=Sections(*word.sections.values(), unknown=unknown))


def nested_news(data: dict[str, Any]) -> dict[str, Any]:
    """Add a field that nobody knows to the object and to each object inside of it that is one of ours."""
    inside = {
        name: [nested_news(item) if isinstance(item, dict) else item for item in value] if isinstance(value, list) else value
        for name, value in data.items()
    }
    return {**inside, "of_the_future": {"a": 1}}


@pytest.mark.parametrize(("word", "ours"), WORDS)
def test_the_next_version_is_understood(word: Word, ours: int) -> None:
    """What it says beyond what we know is passed over inside of its parts, and kept where it may be a section."""
    read = codec.from_json(type(word), nested_news(as_written(word, version=ours + 1)))

    kept = {} if isinstance(word, Roster) else {"of_the_future": {"a": 1}}
    assert as_written(read, version=ours) == as_written(word) | kept


@pytest.mark.parametrize(("word", "ours"), WORDS)
def test_our_own_version_stays_strict(word: Word, ours: int) -> None:
    """A field that our version does not have is a mistake, not a version; with sections only inside the parts."""
    data = nested_news(as_written(word, version=ours))
    if data == as_written(word, version=ours, of_the_future={"a": 1}):
        assert codec.from_json(type(word), data) == with_unknown(word, {"of_the_future": {"a": 1}})
        return
    with pytest.raises(codec.WireError, match="of_the_future"):
        codec.from_json(type(word), data)


@pytest.mark.parametrize(("word", "ours"), WORDS)
def test_an_older_neighbour_may_lack_what_is_new(word: Word, ours: int) -> None:
    """What it does not say has its default: that is what a field that is added later must have."""
    data = as_written(word)
    required = {"job", "uid", "name", "role", "fence", "state", "min_nodes", "max_nodes", "entry", "entrypoint", "node"}
    required |= {"incarnation", "agent", "host", "local_world_size", "store", "attempt", "term"}
    sparse = {name: value for name, value in data.items() if name in required}

    assert isinstance(codec.from_json(type(word), {**sparse, "version": ours}), type(word))


@pytest.mark.parametrize("version", [0, -1, 3, 99, "1", None, True])
@pytest.mark.parametrize(("word", "ours"), WORDS)
def test_other_versions_are_refused_by_name(word: Word, ours: int, version: object) -> None:
    """One error says what it was and what is understood here, whatever else the word holds."""
    shift = version + ours - 1 if type(version) is int and version > 1 else version

    understood = f"{max(1, ours - 1)} to {ours + 1}"

    with pytest.raises(
        codec.VersionError,
        match=f"version: {shift!r} is not allowed; expected {understood}, the format versions that Rallypoint",
    ):
        codec.from_json(type(word), {"version": shift, "of_the_future": 1})


def test_an_answer_of_the_next_version_is_understood() -> None:
    """As a question is."""
    data = reply_to_json(Continue(fence=FENCE, unsupervised=1.0))
    data["body"] = nested_news(data["body"])

    expected = with_unknown(Continue(fence=FENCE, unsupervised=1.0), {"of_the_future": {"a": 1}})
    assert reply_from_json({**data, "version": MESSAGES_VERSION + 1}) == expected
    assert reply_from_json(data) == expected
    with pytest.raises(codec.WireError, match=r"body\.fence\.of_the_future"):
        reply_from_json({**data, "body": {**data["body"], "fence": {**data["body"]["fence"], "of_the_future": 1}}})


@pytest.mark.parametrize("version", [MESSAGES_VERSION + 2, None, "1"])
def test_an_answer_of_another_version_is_refused(version: object) -> None:
    """Half understood is worse than refused."""
    with pytest.raises(codec.VersionError, match="version: "):
        reply_from_json({**reply_to_json(Continue(fence=FENCE)), "version": version})


def test_a_neighbour_is_the_one_before_or_after() -> None:
    """From version to version, and none before the first."""
    assert [codec.neighbour(theirs, 3) for theirs in (2, 3, 4)] == [True, False, True]
    for theirs, ours in ((1, 3), (5, 3), (0, 1)):
        with pytest.raises(codec.VersionError):
            codec.neighbour(theirs, ours)
