"""What a real coordinator tells while things happen, and in which order: by its status, its metrics, its log.

How soon after it is true is told by order and not by a clock: what is overdue is told before anything follows from it.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.exits import Exit
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.missing import Absence, Missing
from rallypoint.wire.paths import METRICS_PATH, STATUS_PATH
from rallypoint.wire.status import JobState, JobStatus
from tests.live.agent_processes import Agents, agents, free_port, said
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def asked(job: Agents) -> JobStatus:
    """Return the status as the coordinator tells it to whoever asks."""
    where = codec.loads(Endpoint, (job.folder / "endpoint.json").read_text())
    request = urllib.request.Request(f"http://{where.address}{STATUS_PATH}", headers={TOKEN_HEADER: "a secret"})
    with urllib.request.urlopen(request, timeout=60 * PATIENCE) as answer:
        return codec.loads(JobStatus, answer.read().decode())


def missing(job: Agents, node: int, why: Absence) -> tuple[Missing, JobStatus]:
    """Wait until a node is told as missing in this way; return that, and all that is told beside it."""

    def told() -> tuple[Missing, JobStatus] | None:
        status = asked(job)
        found = next((one for one in status.missing if (one.node, one.why) == (node, why)), None)
        return None if found is None else (found, status)

    return eventually(told, why=f"node {node} is {why.value}")


def scraped(port: int) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{METRICS_PATH}", timeout=60 * PATIENCE) as answer:
        text = answer.read().decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in samples}


def test_a_node_that_stops_is_told_long_before_it_is_lost(job: Agents) -> None:
    """As missing while its lease still runs, since when it was heard last; the metrics and the log tell the same story."""
    port = free_port()
    job.write_plan(min_nodes=1, max_nodes=2, nproc_per_node=1, node_lease=600.0, metrics_port=port)
    coordinator = job.coordinator()
    eventually((job.folder / "endpoint.json").exists)
    first = job.node(0)
    expected, status = missing(job, 1, Absence.EXPECTED)
    assert (expected.host, expected.since <= status.updated_at) == ("", True)

    second = job.node(1)
    job.running(1, 2)
    eventually(lambda: all(one.node != 1 for one in asked(job).missing))
    os.killpg(second.pid, signal.SIGSTOP)
    silent, status = missing(job, 1, Absence.SILENT)
    assert (status.state, status.fence.round, status.incidents) == (JobState.RUNNING, 1, ())
    assert silent.since <= status.updated_at

    os.killpg(second.pid, signal.SIGKILL)
    lost, _ = missing(job, 1, Absence.LOST)
    assert lost.since >= silent.since
    job.running(2, 1)
    status = job.published(JobState.RUNNING, 2)
    assert [one.node for one in status.missing if one.why is Absence.LOST] == [1]
    # One reading serves all who ask within a second.
    eventually(lambda: scraped(port)["rallypoint_rounds_total", ""] == 2)
    found = scraped(port)
    assert found["rallypoint_restarts_total", "node"] == 1
    assert found["rallypoint_missing_nodes", "absent"] == 1

    job.finish()
    assert said(first)[0] == Exit.OK
    code, output = said(coordinator)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    final = job.status()
    assert final is not None
    assert code == Exit.OK
    assert [(line["event"], line["detail"]) for line in lines] == [(event.kind, event.detail) for event in final.events]
