from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from rallypoint.cli.document import JobDocument
from rallypoint.cli.live import job_screen, table_screen
from rallypoint.cli.plain import fact_lines, is_screen, job_lines, table_lines
from rallypoint.cli.values import Fact, JobView
from rallypoint.cli.view import overview, view
from rallypoint.wire.status import Outcome
from tests.cli.samples import KILLED, NOW, PLAN, ZONE, begun, node_fault, over, process_fault, submitted, training

TRAINING = """\
job         digits
phase       Running: training on 2 of 2 nodes
attempt     1 of 4
nodes       2 of 2
ranks       4
round       2
step        150
restarts    1 of 3
resets      0 of 3
metrics     loss=0.31 accuracy=0.953125
checkpoint  /ckpt/step-100
time        attempt 1 started 2m 13s ago
owner       cli

NODE  INCARNATION  HOST  STATE     RANK  STEP  RESTARTS   PID
   0            1  ada   training     0   150         0  4700
   0            1  ada   training     1   150         0  4701
   1            1  ada   training     2   150         0  4702
   1            1  ada   training     3   150         1  4703

WHEN      CAUSE    CULPRIT                 ACTION           RESUMED  LOST STEPS
14:00:40  process  rank 3 node 1: SIGKILL  restart-workers    3.2 s          40
"""

SUBMITTED = """\
job       digits
phase     Submitted: waiting for a supervisor
attempt   -
nodes     -
ranks     -
round     -
step      -
restarts  0 of 3
resets    0 of 3
time      submitted 2m 13s ago
owner     cli

no nodes yet

no incidents
"""

FAILED = """\
job         digits
phase       Failed
attempt     1 of 4
nodes       -
ranks       -
round       -
step        150
restarts    1 of 3
resets      0 of 3
metrics     loss=0.31 accuracy=0.953125
checkpoint  /ckpt/step-100
time        attempt 1 took 2m 03s and ended 10 s ago
owner       cli

NODE  INCARNATION  HOST  STATE  RANK  STEP  RESTARTS  PID
   0            1  -     ended     -     -         0    -
   1            1  -     ended     -     -         1    -

WHEN      CAUSE    CULPRIT                 ACTION           RESUMED  LOST STEPS
14:00:40  process  rank 3 node 1: SIGKILL  restart-workers    3.2 s          40

Job digits failed in attempt 1 after 2m 03s (WorkersFailed): rank 3 on node 1 was killed by SIGKILL; all is spent
Last lines of the log (/jobs/digits/rank-3.err on ada):
  epoch 2
  step 138
"""

LONG_HOST = "ip-10-0-12-230.eu-west-1.compute.internal"


def shown(record, status=None, **options) -> JobView:
    return view(record, status, PLAN, NOW, zone=ZONE, **options)


def drawn(renderable, *, width: int = 80) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, force_terminal=True, color_system=None, highlight=False).print(renderable)
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("job", "text"),
    [
        pytest.param(shown(begun(), training()), TRAINING, id="training"),
        pytest.param(shown(submitted()), SUBMITTED, id="just submitted"),
        pytest.param(shown(over(outcome=Outcome.FAILED, culprit=KILLED)), FAILED, id="failed"),
    ],
)
def test_plain_text_is_aligned_and_complete(job, text):
    """In a pipe each row is whole, so that `grep` and `awk` find what they look for."""
    assert "".join(f"{line}\n" for line in job_lines(job)) == text


def test_plain_text_cuts_nothing():
    """A long host name is written out."""
    assert LONG_HOST in "\n".join(job_lines(shown(begun(), training(host=LONG_HOST))))


def test_empty_tables_say_so():
    """No jobs is an answer, too."""
    assert list(table_lines(overview((), NOW))) == ["no jobs"]
    assert list(fact_lines(())) == []
    assert drawn(table_screen(overview((), NOW))) == ["no jobs"]


SCREEN = [
    "digits  Running  training on 2 of 2 nodes",
    "",
    "ATTEMPT   NODES    RANKS   ROUND   STEP   RESTARTS   RESETS",
    "1 of 4    2 of 2   4       2       150    1 of 3     0 of 3",
    "",
    "metrics     loss=0.31 accuracy=0.953125",
    "checkpoint  /ckpt/step-100",
    "time        attempt 1 started 2m 13s ago",
    "owner       cli",
    "",
    "NODE  INCARNATION  HOST                     STATE     RANK  STEP  RESTARTS   PID",
    "   0            1  ip-10-0-12-230.eu-west…  training     0   150         0  4700",
    "                                                         1   150         0  4701",
    "   1            1  ip-10-0-12-230.eu-west…  training     2   150         0  4702",
    "                                                         3   150         1  4703",
    "",
    "WHEN      CAUSE    CULPRIT                 ACTION           RESUMED  LOST STEPS",
    "14:00:40  process  rank 3 node 1: SIGKILL  restart-workers    3.2 s          40",
]


def test_the_screen_does_not_wrap_at_eighty_columns():
    """What is too long is cut with an ellipsis, and what repeats is left blank."""
    assert drawn(job_screen(shown(begun(), training(host=LONG_HOST)))) == SCREEN


@pytest.mark.parametrize("width", [60, 80, 100, 200], ids="{} columns".format)
@pytest.mark.parametrize("by_node", [False, True], ids=["by rank", "by node"])
def test_no_line_is_wider_than_the_screen(width, by_node):
    """At any width."""
    screen = drawn(job_screen(shown(begun(), training(host=LONG_HOST), by_node=by_node)), width=width)

    assert max(map(len, screen)) <= width
    assert len(screen) == len(SCREEN) - 2 * by_node


def test_a_table_of_jobs_fits_eighty_columns():
    """Long names and an Airflow task's long id give way; numbers do not."""
    long = dataclasses.replace(begun(), name="a-rather-long-name-of-a-job", owner="0198f5b0-7a4f-7cc0-b8a5-6c8b0e0a3c11")
    table = overview([JobDocument(record=long, plan=PLAN, status=training())], NOW)

    titles, row = drawn(table_screen(table))

    assert titles.split() == ["NAME", "PHASE", "ATTEMPT", "NODES", "STEP", "RESTARTS", "AGE", "OWNER"]
    assert row.split()[1:-1] == ["Running", "1/4", "2/2", "150", "1/3", "2m", "13s"]
    assert len(row) <= 80


def test_a_screen_shows_the_newest_incidents_and_counts_the_others():
    """A week of faults must not push the ranks off the screen."""
    many = tuple(process_fault(number=number) for number in range(1, 12))
    lines = drawn(job_screen(shown(dataclasses.replace(begun(), incidents=(*many, node_fault())), training(nodes=1))))

    assert "4 earlier" in lines
    assert sum("process" in line or "node 1: lost" in line for line in lines) == 8


def test_the_end_of_a_job_is_told_on_the_screen():
    """The story stands below the tables."""
    lines = drawn(job_screen(shown(over(outcome=Outcome.FAILED, culprit=KILLED))), width=120)

    assert lines[-4:] == FAILED.splitlines()[-4:]


@pytest.mark.parametrize(
    ("environ", "isatty", "expected"),
    [
        pytest.param({"TERM": "xterm-256color"}, True, True, id="a terminal"),
        pytest.param({"TERM": "xterm-256color"}, False, False, id="a pipe"),
        pytest.param({"TERM": "dumb"}, True, False, id="a dumb terminal"),
        pytest.param({}, True, False, id="a terminal of no known kind"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, True, False, id="NO_COLOR"),
        pytest.param({"TERM": "xterm", "NO_COLOR": ""}, True, True, id="NO_COLOR that is empty asks for nothing"),
    ],
)
def test_colours_are_for_terminals_that_want_them(environ, isatty, expected):
    """Everything else gets plain lines."""
    assert is_screen(environ, isatty=isatty) is expected


def test_facts_are_aligned():
    """Labels on the left, texts in one column."""
    assert list(fact_lines([Fact(label="a", text="1"), Fact(label="long", text="2")])) == ["a     1", "long  2"]
