"""What the version before ours has written is read, and written again with nothing lost.

The files of tests/data/previous were written by a job and by the codec of the version before optional capabilities had
sections; `every-field-*.json` hold a value in each field. The plan in `plan-before-groups.json` was written by the version
before plans had groups.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rallypoint.checkpoint.manifest import newest_first, verify
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.messages import AgentReport, reply_from_json, reply_to_json
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

PREVIOUS = Path(__file__).parents[1] / "data" / "previous"
#: Fields that came with this version, and what they hold in a record of the one before.
LATER: dict[type, dict[str, object]] = {
    Plan: {
        "coordinator_replacements": 100,
        "job": "",
        "roles": [],
        "queue_group": "",
        "queue_group_total": 0,
        "place": "",
        "place_claim": "",
        "node_group": "",
        "node_group_timeout": 300.0,
        "rpc_pickle": False,
        "hidden": [],
    }
}
REPLIES = ("assignment", "continue", "refusal", "regroup", "stop")


def written(name: str) -> dict[str, object]:
    data: dict[str, object] = json.loads((PREVIOUS / name).read_text())
    return data


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("plan.json", Plan),
        ("every-field-plan.json", Plan),
        ("plan-before-groups.json", Plan),
        ("status.json", JobStatus),
        ("every-field-status.json", JobStatus),
        ("every-field-report.json", AgentReport),
    ],
)
def test_records_keep_every_field(name: str, kind: type) -> None:
    """Those of sections and those of a capability that is not installed included: both versions run side by side."""
    read: object = codec.from_json(kind, written(name))

    assert json.loads(codec.dumps(read)) == {**LATER.get(kind, {}), **written(name)}
    assert codec.from_json(kind, json.loads(codec.dumps_lines(read))) == read


@pytest.mark.parametrize("kind", REPLIES)
def test_replies_keep_every_field(kind: str) -> None:
    """A coordinator of one version answers agents of the other."""
    assert reply_to_json(reply_from_json(written(f"every-field-{kind}.json"))) == written(f"every-field-{kind}.json")


def test_the_record_of_a_job_is_read() -> None:
    """A supervisor of this version takes over a job of the other."""
    record = JobRecord.from_json((PREVIOUS / "record.json").read_bytes())

    assert (record.name, record.attempt, record.phase.value) == ("counter", 2, "Succeeded")


def test_a_checkpoint_is_read() -> None:
    """It is complete, and a job that resumes from it is at its step."""
    [found] = newest_first((PREVIOUS / "checkpoint").iterdir())

    assert (found.step, verify(found).step) == (3, 3)
