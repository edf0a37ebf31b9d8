from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.report.endings import culprit_of, failure_story, success_line
from rallypoint.report.format import describe_end, describe_who, span
from rallypoint.report.story import story_of
from rallypoint.wire.incident import Culprit
from rallypoint.wire.status import Outcome, Progress
from tests.cli.samples import KILLED, RAISED, node_fault, over, process_fault, submitted


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(-1.0, "0.00 s", id="a clock that went back"),
        pytest.param(0.346, "0.35 s", id="below a second"),
        pytest.param(0.996, "1.0 s", id="rounds up to the next form"),
        pytest.param(3.21, "3.2 s", id="seconds"),
        pytest.param(59.4, "59 s", id="whole seconds"),
        pytest.param(59.6, "1m 00s", id="rounds up to a minute"),
        pytest.param(133.0, "2m 13s", id="minutes"),
        pytest.param(3900.0, "1h 05m", id="hours"),
        pytest.param(277200.0, "3d 5h", id="days"),
    ],
)
def test_spans_are_told_to_the_figures_that_matter(seconds, text):
    """Half a second and half a week are both read at a glance."""
    assert span(seconds) == text


@given(st.floats(min_value=0, max_value=1e9))
def test_a_span_never_has_more_than_two_numbers_and_never_sixty_of_anything(seconds):
    """Rounding carries over: no `60 s`, no `1m 60s`, no `0h`."""
    text = span(seconds)

    numbers = re.findall(r"[0-9.]+", text.partition("d")[2] or text)
    assert len(numbers) <= 2
    assert all(float(number) < 60 for number in numbers)
    assert not text.startswith(("0m", "0h", "0d"))


@pytest.mark.parametrize(
    ("culprit", "who", "end"),
    [
        pytest.param(KILLED, "rank 3 on node 1 (ada)", "SIGKILL", id="a worker that was killed"),
        pytest.param(RAISED, "rank 3 on node 1 (ada)", "exit 1", id="a worker that raised"),
        pytest.param(Culprit(node=2, host="ada"), "node 2 (ada)", "lost", id="a node that is gone"),
        pytest.param(Culprit(node=2, signal=60), "node 2", "signal 60", id="a signal without a name"),
    ],
)
def test_a_culprit_is_told_in_a_phrase(culprit, who, end):
    """Who broke and how it ended."""
    assert (describe_who(culprit), describe_end(culprit)) == (who, end)


def test_a_failure_tells_what_who_and_the_last_lines():
    """One story: attempt and time, the verdict, and the culprit's log."""
    assert failure_story(over(outcome=Outcome.FAILED, culprit=KILLED)).splitlines() == [
        ("Job digits failed in attempt 1 after 2m 03s (WorkersFailed): rank 3 on node 1 was killed by SIGKILL; all is spent"),
        "Last lines of the log (/jobs/digits/rank-3.err on ada):",
        "  epoch 2",
        "  step 138",
    ]


def test_a_verdict_that_names_nobody_is_followed_by_who_broke_first():
    """`no world within the grace` alone would not help; the last incident that names a culprit does."""
    record = dataclasses.replace(
        over(outcome=Outcome.FAILED, message="no world ran"), incidents=(process_fault(culprit=RAISED),)
    )

    assert failure_story(record).splitlines()[1] == (
        "First failure: rank 3 on node 1 (ada) exited with code 1: ValueError: boom"
    )


def test_without_lines_the_story_says_where_the_log_is():
    """A silent worker has a log, too."""
    silent = dataclasses.replace(KILLED, log_tail=())

    assert failure_story(over(outcome=Outcome.FAILED, culprit=silent)).splitlines()[-1] == (
        "Log file: /jobs/digits/rank-3.err on ada"
    )


def test_long_logs_are_cut_to_their_end():
    """At most twenty lines of at most 400 characters: an exception is no log file."""
    long = dataclasses.replace(KILLED, log_tail=tuple(f"{number} {'x' * 1000}" for number in range(50)))

    story = failure_story(over(outcome=Outcome.FAILED, culprit=long)).splitlines()

    assert [line.split()[0] for line in story[2:]] == [str(number) for number in range(30, 50)]
    assert max(map(len, story[2:])) == 402


@pytest.mark.parametrize(
    ("record", "culprit"),
    [
        pytest.param(over(outcome=Outcome.FAILED, culprit=RAISED), RAISED, id="the verdict's"),
        pytest.param(over(outcome=Outcome.FAILED), KILLED, id="else that of the last incident"),
        pytest.param(
            dataclasses.replace(over(outcome=Outcome.FAILED), incidents=(node_fault(), process_fault())),
            node_fault().culprit,
            id="of several incidents the latest",
        ),
        pytest.param(
            dataclasses.replace(over(outcome=Outcome.FAILED), incidents=(process_fault(attempt=7),)),
            None,
            id="never one of another attempt",
        ),
    ],
)
def test_the_culprit_is_who_broke_in_the_last_attempt(record, culprit):
    """The verdict knows best; the incidents of this attempt know next."""
    assert culprit_of(record) == culprit


def _story(record):
    return story_of(record, None, now=record.last_now)


def test_success_is_one_line():
    """Time, step, metrics, what it got over, and where the result lies."""
    assert success_line(_story(over(outcome=Outcome.SUCCEEDED))) == (
        "Job digits succeeded in attempt 1 after 2m 03s at step 150 (loss=0.31 accuracy=0.953125); "
        "recovered from 1 fault, 40 steps repeated; checkpoint /ckpt/step-100"
    )


def test_a_job_that_reports_nothing_succeeds_in_few_words():
    """What is unknown is left out."""
    record = dataclasses.replace(over(outcome=Outcome.SUCCEEDED), progress=Progress(), incidents=())

    assert success_line(_story(record)) == "Job digits succeeded in attempt 1 after 2m 03s"


def test_a_job_without_an_attempt_has_a_story_too():
    """It was ended before it began."""
    assert failure_story(submitted()) == "Job digits failed before its first attempt: no reason was recorded"
