from __future__ import annotations

import dataclasses
import json
from xml.etree import ElementTree

import pytest

from rallypoint.simulation.simulator import simulate
from rallypoint.supervision.record import Holder
from rallypoint.wire import codec
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.places import RankSpan
from rallypoint.wire.sections import replaced
from tests.cli import samples
from tests.supervision.test_hindsight import LADDER

BOOM = {"node": 1, "local_rank": 0, "reason": "rank 1 on node 1 exited with code 1", "rule": "the table"}


@pytest.fixture
def record():
    """A job that pauses before its second attempt; it had a fault of a worker before."""
    steps = [
        {"at": 10, "pods": "RR"},
        {"at": 60, "incidents": [BOOM]},
        {"at": 100, "pods": "RF(1)"},
        {"at": 165, "gone": True},
    ]
    record = simulate(LADDER, steps)[-1].record
    return dataclasses.replace(record, name="digits", holder=Holder(id="h", name="rallypoint supervise", host="ada", pid=7))


@pytest.fixture
def folder(record, tmp_path):
    """A job's folder: its record, and its plan beside it."""
    plan = replaced(samples.PLAN, min_nodes=2, max_nodes=2, node_replacements=0)
    (tmp_path / "record.json").write_text(record.to_json())
    (tmp_path / "plan.json").write_text(codec.dumps(plan))
    return tmp_path


def test_a_record_is_explained(run, folder, capsys):
    """The headline, the story, who supervises, what comes next by which clock, and the cost: one page."""
    assert run("explain", folder / "record.json") == 0

    page = capsys.readouterr().out
    assert page.startswith("Job digits: phase Resetting, attempt 1, 1 of 3 retries used.")
    assert "incident 1: rank 1 on node 1 exited with code 1" in page
    assert "rallypoint supervise, process 7 on ada" in page
    assert "in 1m 30s" in page
    assert "(retry-pause): attempt 2 is deployed   [fault_tolerance.retry_pause_period]" in page
    assert "1 reset of the whole job, 2 left" in page


def test_a_record_without_its_plan_tells_what_it_can(run, folder, capsys):
    """The story needs no plan; the clocks do, and that is said."""
    (folder / "plan.json").unlink()

    assert run("explain", folder / "record.json") == 0
    page = capsys.readouterr().out
    assert "incident 1" in page
    assert "the job's plan is not available" in page


def test_the_document_of_status_is_explained(run, folder, record, tmp_path, capsys):
    """What `rallypoint status --json` prints has the plan in it."""
    plan = json.loads((folder / "plan.json").read_text())
    path = tmp_path / "document.json"
    path.write_text(json.dumps({"version": 1, "record": json.loads(record.to_json()), "plan": plan, "status": None}))

    assert run("explain", path) == 0
    assert "(retry-pause)" in capsys.readouterr().out


def test_one_incident_is_told(run, folder, capsys):
    """`--incident N` tells all of one; a number that is not there names those that are."""
    assert run("explain", folder / "record.json", "--incident", "1") == 0
    assert capsys.readouterr().out.startswith("Incident 1: rank 1 on node 1 exited with code 1")

    assert run("explain", folder / "record.json", "--incident", "9") == 1
    assert "--incident 9: expected 1 to 3" in capsys.readouterr().err


def test_programs_get_a_document(run, folder, capsys):
    """With `--json` everything is a value; times are seconds since the epoch."""
    assert run("explain", folder / "record.json", "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["phase"], told["next"][0]["clock"], told["next"][0]["at"]) == (
        "digits",
        "Resetting",
        "retry-pause",
        255.0,
    )
    assert len(told["incidents"]) == 3


def test_a_job_that_runs_is_explained(run, place, capsys):
    """By its name, from what is there now; nothing is changed by it."""
    place.put(samples.begun(), samples.training(), nodes=2)
    before = place.world.jobs["digits"].record

    assert run("explain", "digits") == 0
    assert capsys.readouterr().out.startswith("Job digits: phase Running, attempt 1")
    assert place.world.jobs["digits"].record == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "{",
            "the whole: '{' is not allowed; expected JSON text",
            id="no JSON",
        ),
        pytest.param('{"name": 3}', "version", id="no record"),
        pytest.param("[]", "an object with keys such as ", id="a list"),
    ],
)
def test_a_file_that_is_no_record_is_an_error(run, tmp_path, capsys, text, message):
    """The error names the file and the place."""
    path = tmp_path / "other.json"
    path.write_text(text)

    assert run("explain", path) == 1
    told = capsys.readouterr().err
    assert str(path) in told
    assert message in told or "name" in told


def test_a_file_that_is_not_there_is_an_error(run, tmp_path, capsys):
    """Its path is told, and why."""
    assert run("explain", tmp_path / "none.json") == 1
    assert "none.json: cannot read the file: No such file or directory" in capsys.readouterr().err


def hung(record):
    """The job with a hang as its last incident."""
    places = (
        RankSpan(first=0, last=2, count=3, least=42, most=42, waits=True),
        RankSpan(first=3, last=3, count=1, least=41, most=41, culprit=True),
    )
    name = IncidentId(attempt=1, round=1, node=0, local_rank=0, sequence=1)
    hang = Incident(id=name, cause=Cause.HANG, rung=Rung.NOTIFY, reason="it hangs", detected_at=1e6, places=places)
    return dataclasses.replace(record, incidents=(*record.incidents, hang))


def test_a_hang_has_a_picture(run, folder, record, tmp_path, capsys):
    """In the text, and as a file where one is asked for."""
    (folder / "record.json").write_text(hung(record).to_json())
    number = len(record.incidents) + 1

    assert run("explain", folder / "record.json", "--incident", number, "--svg", tmp_path / "hang.svg") == 0
    page = capsys.readouterr().out
    assert "behind   rank 3 is 1 heartbeat behind ranks 0-2, which wait for it" in page
    assert "picture  ranks" in page
    assert "it hangs" in "".join(ElementTree.parse(tmp_path / "hang.svg").getroot().itertext())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("--svg", "x.svg"), "--svg x.svg: requires an incident", id="of which incident"),
        pytest.param(("--incident", "1", "--svg", "/none/x.svg"), "--svg /none/x.svg: cannot write the file", id="no folder"),
    ],
)
def test_a_picture_that_cannot_be_is_an_error(run, folder, capsys, words, message):
    """It says what to do."""
    assert run("explain", folder / "record.json", *words) == 1
    assert message in capsys.readouterr().err
