"""The tab, the CLI and XCom list the same incidents and count the same faults."""

from __future__ import annotations

import dataclasses
import datetime
from types import SimpleNamespace

from rallypoint.cli.explain import Case, explanation
from rallypoint.cli.view import view
from rallypoint.operators.reporting import asset_extra
from rallypoint.provider.lineage import Library, lineage_of
from rallypoint.report.endings import success_line
from rallypoint.report.incidents import XCOM_LIMIT, list_incidents, to_xcom
from rallypoint.report.model import Story
from rallypoint.report.page.view import page_of
from rallypoint.report.story import story_of
from rallypoint.report.summary import summarize, xcoms
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause, Culprit, Folded, Incident, IncidentId, Rung
from tests.provider.records import CULPRIT, incident, record, status
from tests.wire.test_codec import PLAN

NODE = Incident(
    id=IncidentId(attempt=1, round=0, node=2, sequence=1),
    cause=Cause.NODE,
    rung=Rung.RECOVER,
    reason="node 2 was lost",
    culprit=Culprit(node=2, host="host-c"),
    detected_at=120.0,
    last_step=90,
    resumed_step=80,
)
SCALE_UP = dataclasses.replace(
    NODE,
    id=IncidentId(attempt=1, round=4, sequence=2),
    cause=Cause.SCALE,
    rung=Rung.ELASTIC_TRAINING,
    culprit=None,
    detected_at=130.0,
    healed_at=131.5,
    last_step=None,
)
RESET = dataclasses.replace(
    NODE, id=IncidentId(attempt=1, round=0), cause=Cause.JOB, rung=Rung.RESET, culprit=None, detected_at=140.0, last_step=None
)
FOLDED = (
    Folded(cause=Cause.PROCESS, attempt=1, node=1, count=12, first_at=50.0, last_at=60.0),
    Folded(cause=Cause.SCALE, attempt=1, count=3, first_at=51.0, last_at=52.0),
    Folded(cause=Cause.JOB, attempt=0, count=2, first_at=40.0, last_at=41.0),
)
RECORD = record(incidents=(NODE, SCALE_UP, RESET), folded=FOLDED)
#: The coordinator knows of one more than the record does.
STATUS = dataclasses.replace(status(0, 1), incidents=(incident(5), NODE))


STORY = story_of(RECORD, STATUS, now=150.0)
FAULTS = 14


def test_every_output_counts_the_same_faults() -> None:
    """A scale-up and a reset are no faults, a lost node and a dead worker are, and so are those that are counts by now."""
    summary = summarize(STORY)
    page = page_of(RECORD, STATUS, now=150.0)
    case = Case(record=RECORD, plan=None, status=STATUS, seen=None, now=150.0, holder="unknown")
    lineage = lineage_of(summary, library=Library(lineage=SimpleNamespace, dataset=SimpleNamespace, facet=SimpleNamespace))
    facts = {fact.label: fact.text for fact in page.facts}
    rows = view(RECORD, STATUS, PLAN, now=150.0, zone=datetime.timezone.utc).incidents.rows
    faults_of_table = sum(
        int(row.cells[1].partition(" x")[2] or 1) for row in rows if row.cells[1].startswith(("process", "node"))
    )

    assert (STORY.loss.faults, xcoms(summary)["faults"], facts["Faults"], faults_of_table) == (FAULTS, FAULTS, "14", FAULTS)
    assert sum(row["count"] for row in summary["incidents"] if row["fault"]) == FAULTS
    assert lineage.run_facets["rallypoint_job"].faults == FAULTS
    assert asset_extra(summary)["faults"] == FAULTS
    assert any(line.startswith("  14 faults, training resumed after 1") for line in explanation(case))
    assert "recovered from 14 faults" in _over(Phase.SUCCEEDED).headline.title


def test_every_output_adds_up_the_same_steps() -> None:
    """Also of an incident that only the coordinator knows."""
    over = _over(Phase.SUCCEEDED)
    facts = {fact.label: fact.text for fact in page_of(RECORD, STATUS, now=150.0).facts}

    assert (STORY.loss.steps, summarize(STORY)["steps_lost"], facts["Steps lost"]) == (22, 22, "22")
    assert "recovered from 1 fault, 22 steps repeated" in success_line(over)


def _over(phase: Phase) -> Story:
    return story_of(dataclasses.replace(RECORD, phase=phase), STATUS, now=150.0)


def test_every_output_lists_the_same_incidents() -> None:
    """In one order, with the same culprit, action and steps."""
    pushed = xcoms(summarize(STORY))
    page = page_of(RECORD, STATUS, now=150.0)
    shown = view(RECORD, STATUS, PLAN, now=150.0, zone=datetime.timezone.utc)

    one_by_one = [row for row in pushed["incidents"] if row["id"]]
    moments = [datetime.datetime.fromisoformat(row["time"].replace("Z", "+00:00")).timestamp() for row in one_by_one]
    assert moments == [fault.at for fault in page.faults]
    keys = ("reason", "rank", "node", "host", "action", "steps_lost")
    assert [tuple(row[key] for key in keys) for row in one_by_one] == [
        (fault.title, fault.rank, fault.node, fault.host, fault.rung, fault.steps_lost) for fault in page.faults
    ]
    lines = [row.cells for row in shown.incidents.rows]
    assert [
        (row["cause"], row["action"], "-" if row["steps_lost"] is None else str(row["steps_lost"])) for row in one_by_one
    ] == [(cells[1], cells[3], cells[5]) for cells in lines[len(FOLDED) :]]
    assert [cells[1] for cells in lines[: len(FOLDED)]] == ["process x12", "scale x3", "job x2"]
    assert len(lines) == len(pushed["incidents"])


def test_one_incident_is_told_with_all_that_a_dag_asks_for() -> None:
    """By names that stay."""
    assert to_xcom(list_incidents(record(incidents=(incident(),)), None)) == [
        {
            "id": "1.1.1.1.0",
            "time": "1970-01-01T00:01:50.000Z",
            "cause": "process",
            "reason": "rank 3 on node 1 was killed by SIGKILL",
            "fault": True,
            "rank": CULPRIT.rank,
            "node": CULPRIT.node,
            "host": CULPRIT.host,
            "action": "restart-workers",
            "recovered": "training resumed",
            "seconds_lost": 2.0,
            "steps_lost": 12,
            "count": 1,
        }
    ]


def test_a_long_list_keeps_the_newest_and_counts_the_rest() -> None:
    """XCom stays small, and the number of faults is the same."""
    many = tuple(dataclasses.replace(incident(n), detected_at=100.0 + n, reason="x" * 9000) for n in range(1, 301))
    crowded = record(incidents=many, folded=FOLDED)

    rows = to_xcom(list_incidents(crowded, None))

    assert len(rows) == XCOM_LIMIT + 3
    assert sum(row["count"] for row in rows if row["fault"]) == story_of(crowded, None, now=500.0).loss.faults == 312
    assert (rows[0]["id"], rows[0]["cause"], rows[0]["count"]) == ("", "process", 212)
    assert all(len(row["reason"]) <= 500 for row in rows)


def test_a_time_that_no_calendar_has_is_told_as_a_number() -> None:
    """A damaged record does not fail its task."""
    assert (
        to_xcom(list_incidents(record(incidents=(dataclasses.replace(incident(), detected_at=1e300),)), None))[0]["time"]
        == "1e+300"
    )
