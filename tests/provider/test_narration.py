from __future__ import annotations

import dataclasses

import pytest

from rallypoint.backends.turns import Snapshot
from rallypoint.job import ElasticJob, compile_plan
from rallypoint.provider.task_log import PROGRESS_EVERY, Narrator, news, progress_line
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.status import Event, JobStatus
from tests.provider.records import record, status

PLAN = compile_plan(ElasticJob.model_validate({"name": "digits", "entrypoint": "train.py"}))[0]


def look(record: JobRecord, status: JobStatus | None = None, *, supervising: bool = True) -> Snapshot:
    return Snapshot(record=record, plan=PLAN, status=status, supervising=supervising)


def events(*kinds: str) -> tuple[Event, ...]:
    return tuple(Event(at=float(at), kind=kind, detail="") for at, kind in enumerate(kinds))


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        pytest.param("", "ab", "ab", id="the first look"),
        pytest.param("ab", "ab", "", id="nothing new"),
        pytest.param("ab", "abc", "c", id="one more"),
        pytest.param("xy", "ab", "ab", id="a story that began anew"),
    ],
)
def test_only_what_is_new_is_told(before, after, new):
    """The new lines are those after the last one known."""
    assert "".join(e.kind for e in news(events(*before), events(*after))) == new


def test_a_story_whose_beginning_was_dropped_goes_on():
    """The oldest lines may be gone from both."""
    assert [e.kind for e in news(events(*"abc"), events(*"abcd")[1:])] == ["d"]


def test_each_thing_is_told_once():
    """The same snapshot again says nothing; progress comes at its own pace."""
    lines: list[str] = []
    now = [0.0]
    narrator = Narrator(lines.append, clock=lambda: now[0])
    seen = look(record(), status(0, 1), supervising=False)

    narrator(seen)
    told = list(lines)
    narrator(seen)
    now[0] = PROGRESS_EVERY
    narrator(seen)

    assert told == [
        "another process is the supervisor of the job; watching",
        "submitted: by try-1",
        "round: round 1: 2 nodes, 4 ranks",
        "step 150 loss=0.31 (4 ranks on 2 nodes, attempt 1, round 1)",
    ]
    assert lines[len(told) :] == [told[-1]]


def test_what_the_loop_logs_itself_is_not_told_again():
    """The supervisor's own decisions are in the log already; what the coordinator says is not."""
    lines: list[str] = []

    Narrator(lines.append)(look(record(), status(0, 1)))

    assert [line.split(":")[0] for line in lines] == ["round", "step 150 loss=0.31 (4 ranks on 2 nodes, attempt 1, round 1)"]


def test_who_only_watches_says_so_and_says_when_it_takes_over():
    """A reader of the log knows which process acts."""
    lines: list[str] = []
    narrator = Narrator(lines.append)

    for supervising in (False, False, True):
        narrator(look(record(), supervising=supervising))

    assert [line for line in lines if "supervisor" in line] == [
        "another process is the supervisor of the job; watching",
        "this process is now the supervisor of the job",
    ]


def test_a_script_that_reports_nothing_is_told_as_such():
    """No step is no zero."""
    assert progress_line(status(0, step=None)).startswith("no step reported")


def test_a_long_story_is_cut_to_its_newest_lines():
    """A script can write a status with any number of events; each line takes the event loop's time."""
    lines: list[str] = []
    many = events(*(f"k{n}" * 1000 for n in range(5000)))

    Narrator(lines.append)(look(record(), dataclasses.replace(status(0, 1), events=many)))

    told = [text for text in lines if text.startswith("k")]
    assert (len(told), told[-1][:5]) == (100, "k4999")
    assert max(map(len, told)) <= 2000
