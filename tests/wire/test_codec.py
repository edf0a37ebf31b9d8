"""Every word of the wire survives JSON, and what is not a word is refused by name."""

from __future__ import annotations

import pytest

from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, RankGroup, Rung
from rallypoint.wire.messages import (
    AgentReport,
    AgentState,
    Assignment,
    Continue,
    Refusal,
    Regroup,
    Reply,
    Stop,
    WorkerReport,
    reply_from_json,
    reply_to_json,
)
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.status import Event, JobState, JobStatus, Member, Outcome, Progress, RankStatus, Sample, Verdict

FENCE = Fence(attempt=1, term=2, round=3)
CULPRIT = Culprit(node=1, host="b", rank=3, local_rank=1, signal=9, log_tail=("one", "two"))
INCIDENT = Incident(
    id=IncidentId(attempt=1, round=3, node=1, local_rank=1),
    cause=Cause.PROCESS,
    rung=Rung.RESTART_WORKERS,
    reason="rank 3 was killed by SIGKILL",
    culprit=CULPRIT,
    detected_at=5.5,
    evidence=(RankGroup(ranks=(3,), culprit=True, step=4, state="stopped", frames=("train.py:1 f",)),),
)
VERDICT = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message="spent", culprit=CULPRIT)
STATUS = JobStatus(
    job="digits",
    uid="u",
    fence=FENCE,
    state=JobState.RUNNING,
    world=(Member(node=0, incarnation=1, agent="a", host="b", local_world_size=2, group_rank=0, first_rank=0),),
    ranks=(RankStatus(rank=0, node=0, local_rank=0, pid=7, step=3),),
    progress=Progress(step=3, metrics={"loss": 0.5}, checkpoint="/c", resumed_from=1, at=9.0),
    incidents=(INCIDENT,),
    events=(Event(at=1.0, kind="round", detail="round 3", round=3),),
    samples=(Sample(at=2.0, round=3, world_size=2), Sample(at=3.0, round=3, world_size=2, step=3, metrics={"loss": 0.5})),
    verdict=VERDICT,
)
REPORT = AgentReport(
    job="digits",
    fence=FENCE,
    node=0,
    incarnation=1,
    agent="a",
    host="b",
    local_world_size=2,
    store="b:1",
    state=AgentState.FAILED,
    round=3,
    workers=(WorkerReport(local_rank=0, pid=7, step=4, metrics={"loss": 1.0}),),
    failures=(CULPRIT,),
)
ENDPOINT = Endpoint(attempt=1, term=1, host="h", port=1)
PLAN = Plan(name="digits", role="trainer", min_nodes=1, max_nodes=2, entry=Entry.SCRIPT, entrypoint="train.py", env={"A": "1"})


@pytest.mark.parametrize(
    "word",
    [pytest.param(word, id=type(word).__name__) for word in (FENCE, INCIDENT, STATUS, REPORT, PLAN, ENDPOINT)],
)
def test_words_survive_json(word: object) -> None:
    """What was written is what is read."""
    assert codec.loads(type(word), codec.dumps(word)) == word


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(
            Assignment(
                fence=FENCE,
                node=0,
                group_rank=0,
                group_world_size=1,
                first_rank=0,
                world_size=2,
                store="b:1",
                restart_count=0,
                max_restarts=3,
                digest="d",
            ),
            id="assignment",
        ),
        pytest.param(Regroup(fence=FENCE, reason="a rank died"), id="regroup"),
        pytest.param(Stop(fence=FENCE, verdict=VERDICT), id="stop"),
        pytest.param(Continue(fence=FENCE), id="continue"),
        pytest.param(Refusal(fence=FENCE, reason="old", stale=True), id="refusal"),
    ],
)
def test_replies_say_which_they_are(reply: Reply) -> None:
    """The kind travels with the body."""
    assert reply_from_json(reply_to_json(reply)) == reply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"attempt": "1"},
            "attempt: '1' is not allowed; expected a value of type int",
            id="a string for a number",
        ),
        pytest.param(
            {"attempt": True},
            "attempt: True is not allowed; expected a value of type int",
            id="a boolean",
        ),
        pytest.param(
            {"turn": 1},
            "turn: 1 is not allowed; expected only the keys attempt, term, round",
            id="an unknown field",
        ),
    ],
)
def test_what_is_no_word_is_refused_by_name(change: dict[str, object], message: str) -> None:
    """The error names the path, the value, and what is allowed."""
    with pytest.raises(codec.WireError) as caught:
        codec.from_json(Fence, {**codec.to_json(FENCE), **change})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "read"),
    [
        pytest.param("é 😀 \\udcff \x1b\n", "é 😀 \\udcff \x1b\n", id="ordinary text stays as it is"),
        pytest.param("img_\udcff.jpg", "img_\\udcff.jpg", id="half a surrogate pair is spelled"),
        pytest.param("\\\ud800", "\\\\ud800", id="behind a backslash"),
    ],
)
def test_every_text_can_be_sent(text: str, read: str) -> None:
    """A worker's error may hold a file name that is no UTF-8; it must not end who tells it."""
    written = codec.dumps(Culprit(error=text)).encode()

    assert codec.loads(Culprit, written).error == read


def test_errors_name_the_path_into_the_document() -> None:
    """A wrong value deep inside is found by its path."""
    data = codec.to_json(STATUS)
    data["world"][0]["incarnation"] = None
    with pytest.raises(codec.WireError, match=r"^world\[0\]\.incarnation: None is not allowed"):
        codec.from_json(JobStatus, data)


def test_a_missing_field_is_named() -> None:
    """Nothing is silently defaulted that has no default."""
    with pytest.raises(
        codec.WireError,
        match=r"^job: None is not allowed; expected a value, because this field is required",
    ):
        codec.from_json(JobStatus, {"uid": "u"})


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"version": 2, "kind": "continue", "body": {}}, id="another version"),
        pytest.param({"version": 1, "kind": "sing", "body": {}}, id="an unknown kind"),
        pytest.param({"version": 3, "kind": [], "body": {}}, id="a kind that is a list"),
        pytest.param({"version": 3, "kind": {"continue": 1}, "body": {}}, id="a kind that is an object"),
        pytest.param({"version": 3, "kind": None, "body": {}}, id="a kind that is null"),
        pytest.param({"version": 3, "body": {}}, id="no kind"),
        pytest.param([], id="no object"),
    ],
)
def test_unknown_replies_are_refused(data: object) -> None:
    """A reply that is not one of the five is an error, never a guess."""
    with pytest.raises(codec.WireError):
        reply_from_json(data)


def test_a_higher_attempt_beats_a_higher_round() -> None:
    """Fences are ordered by attempt, then term, then round."""
    assert Fence(attempt=2) > Fence(attempt=1, term=9, round=9)
    assert Fence(attempt=1, term=2) > Fence(attempt=1, term=1, round=9)


@pytest.mark.parametrize("word", [pytest.param(word, id=type(word).__name__) for word in (INCIDENT, STATUS, REPORT, PLAN)])
def test_words_survive_json_by_lines(word: object) -> None:
    """What is left out, because it is what it would be anyway, is there again when it is read."""
    assert codec.loads(type(word), codec.dumps_lines(word)) == word


def test_json_by_lines_is_for_people() -> None:
    """There is a line for each field and each item; in an item only what tells something."""
    lines = codec.dumps_lines(STATUS).splitlines()

    assert ' "progress": {"step": 3, "metrics": {"loss": 0.5}, "checkpoint": "/c", "resumed_from": 1, "at": 9.0},' in lines
    assert '  {"rank": 0, "node": 0, "local_rank": 0, "pid": 7, "step": 3}' in lines
    assert ' "waiting": [],' in lines
