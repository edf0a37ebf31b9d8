"""The generated reference: committed, up to date, and of one mind with the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rallypoint.job import ElasticJob, JobError
from rallypoint.job.document import read_yaml
from rallypoint.job.schema import job_schema, main, references, wire_schema
from rallypoint.wire.codec import to_json
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, Rung
from rallypoint.wire.status import JobState, JobStatus, Member, Outcome, Verdict

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py"}

STATUS = JobStatus(
    job="digits",
    uid="u",
    fence=Fence(attempt=1, term=1, round=2),
    state=JobState.FAILED,
    world=(Member(node=0, incarnation=0, agent="a", host="h", local_world_size=2),),
    incidents=(
        Incident(
            id=IncidentId(attempt=1, round=1),
            cause=Cause.PROCESS,
            rung=Rung.RESTART_WORKERS,
            reason="exit 1",
            culprit=Culprit(exit_code=1, log_tail=("boom",)),
        ),
    ),
    verdict=Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message="boom"),
)


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in references()])
def test_the_committed_file_is_up_to_date(name):
    """`python -m rallypoint.job.schema` was run after the last change of the models."""
    assert (FOLDER / name).read_text(encoding="utf-8") == references()[name]


def test_the_command_writes_every_file(tmp_path):
    """Into the folder that it is given, which it makes."""
    assert main([str(tmp_path / "new")]) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "new").iterdir()} == references()


@pytest.mark.parametrize("schema", [pytest.param(job_schema(), id="job"), pytest.param(wire_schema(JobStatus), id="status")])
def test_the_schemas_are_schemas(schema):
    """They are valid against the meta-schema of their dialect."""
    dialect = jsonschema.Draft202012Validator
    assert list(dialect(dialect.META_SCHEMA).iter_errors(schema)) == []


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(GOOD, id="short"),
        pytest.param({"name": "rl", "roles": [{"entrypoint": ["a", 1], "nodes": "1:2"}]}, id="list of roles"),
        pytest.param({"name": "rl", "roles": {"a": {"entrypoint": {"module": "pkg"}}}}, id="mapping of roles"),
        pytest.param(
            {**GOOD, "env": {"A": 1, "B": True}, "resources": {"extended": {"rdma/hca": 1}}}, id="values of many kinds"
        ),
        pytest.param({**GOOD, "recovery": {"replace_delay": "1h"}, "logs": {"tee": "both"}}, id="policies"),
        pytest.param(
            {
                **GOOD,
                "profile": "appwrapper",
                "fault_tolerance": {
                    "terminal_exit_codes": "3, 10",
                    "retryable_exit_codes": [137, 143],
                    "pending_fail_strategy": -1,
                    "rules": [{"signal": "SIGKILL", "exit_code": 9, "answer": "fail-now"}],
                    "dynamic_failover_extension": "a.b::C",
                    "orphan_policy": "stop",
                },
                "recovery": {"relaunch_on_worker_failure": 0, "refill": {"reset": {"on_checkpoint": True}}},
            },
            id="words of many kinds",
        ),
        pytest.param(
            {
                **GOOD,
                "labels": {"fault-scheduling": "grace", "fault-retry-times": 3},
                "annotations": {"recover-strategy": "dump"},
                "mindcluster": {"recover_strategy": ["dump"], "grace_over_time": 600},
            },
            id="labels and their block",
        ),
        pytest.param(ElasticJob.model_validate({**GOOD, "profile": "mindcluster"}).to_document(), id="canonical, mindcluster"),
        pytest.param(
            ElasticJob.model_validate({**GOOD, "volumes": [{"name": "c", "emptyDir": {}}]}).to_document(), id="canonical"
        ),
    ],
)
def test_the_schema_accepts_what_the_reader_accepts(document):
    """An editor that knows the schema marks nothing in a valid job, and the reader accepts the job."""
    assert list(jsonschema.Draft202012Validator(job_schema()).iter_errors(document)) == []
    assert ElasticJob.model_validate(document).name == document["name"]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"name": "digits"}, id="no entrypoint"),
        pytest.param({**GOOD, "name": "Digits"}, id="name"),
        pytest.param({**GOOD, "nodez": 1}, id="unknown key"),
        pytest.param({**GOOD, "recovery": {"max_restart": 1}}, id="unknown key of a policy"),
        pytest.param({**GOOD, "roles": [{"entrypoint": "a"}]}, id="both forms"),
        pytest.param({"name": "rl", "roles": []}, id="no roles"),
        pytest.param({**GOOD, "env": {"A": None}}, id="null"),
        pytest.param({**GOOD, "env": {"1A": "x"}}, id="variable name"),
        pytest.param({**GOOD, "nodes": "2-4"}, id="nodes"),
        pytest.param({**GOOD, "rendezvous": {"join_timeout": 0}}, id="duration"),
        pytest.param({**GOOD, "profile": "strict"}, id="profile"),
        pytest.param({**GOOD, "fault_tolerance": {"pending_fail_strategy": 3}}, id="number"),
        pytest.param({**GOOD, "fault_tolerance": {"rules": [{"exit_code": 1}]}}, id="rule without an answer"),
        pytest.param({**GOOD, "fault_tolerance": {"dynamic_failover_extension": "a.b"}}, id="extension"),
        pytest.param({**GOOD, "mindcluster": {"recover_strategy": ["restart"]}}, id="strategy"),
        pytest.param({**GOOD, "labels": {"a": None}}, id="label"),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(document):
    """An editor that knows the schema marks the common mistakes."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, job_schema())
    with pytest.raises(JobError):
        ElasticJob.model_validate(document)


def test_a_status_fits_its_schema():
    """The published status is valid against the schema of the reference."""
    assert list(jsonschema.Draft202012Validator(wire_schema(JobStatus)).iter_errors(to_json(STATUS))) == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"state": "dancing"}, id="unknown state"),
        pytest.param({"uid": 7}, id="wrong type"),
        pytest.param({"more": 1}, id="unknown field"),
        pytest.param({"fence": {"attempt": "1"}}, id="wrong type inside"),
    ],
)
def test_a_status_of_another_shape_does_not(change):
    """The schema is as strict as the reader of the wire."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**to_json(STATUS), **change}, wire_schema(JobStatus))


def test_the_example_of_the_reference_is_a_job():
    """What people copy works."""
    text = references()["job.md"].split("```yaml\n")[1].split("```")[0]
    job = ElasticJob.model_validate(read_yaml(text))

    assert (job.name, str(job.roles[0].nodes), job.rendezvous.last_call_timeout) == ("digits", "1:2", 10.0)


def test_every_field_has_a_meaning_in_the_reference():
    """No row of a table ends empty."""
    rows = [line for line in references()["job.md"].splitlines() if line.startswith("| `")]

    assert len(rows) > 40
    assert not [row for row in rows if row.endswith("|  |")]
