"""Node checks by real agents: who is ill is found, sent away and replaced, and the others train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from rallypoint.wire.check import CheckState, NodeVerdict
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import Answer, Cause
from rallypoint.wire.status import JobState
from tests.live.agent_processes import ROOT, Agents, agents, said
from tests.live.node_check import Case, found, illnesses, play, probe
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(nodes=2), id="two that are well"),
        pytest.param(Case(nodes=3, ill={1: "network"}), id="one of three is broken"),
        pytest.param(Case(nodes=5, ill={0: "slow-network", 3: "lost"}), id="one is slow and one broken"),
    ],
)
def test_who_is_ill_is_found(job: Agents, case: Case) -> None:
    """All the other cases are played by `make node-check`."""
    assert found(play(job, case)) == case.expected()


def test_a_faulty_node_is_sent_away_and_its_replacement_checked_before_all_train(job: Agents) -> None:
    """The agent ends with the code that asks for another machine; nobody trains before a check was passed."""
    ill = illnesses(job.folder, {1: "device"})
    job.write_plan(min_nodes=3, max_nodes=3, nproc_per_node=1, check_level=1, check_timeout=120.0, check_program=probe(ill))
    coordinator, stays, faulty, also = job.coordinator(), job.node(0), job.node(1), job.node(2)

    code, output = said(faulty)
    assert code == Exit.ELSEWHERE, output
    status = eventually(job.status)
    assert (status.state, status.world) == (JobState.FORMING, ())
    incident = status.incidents[0]
    assert (incident.cause, incident.answer, incident.culprit is not None) == (Cause.NODE, Answer.RETRY_ELSEWHERE, True)
    assert status.check is not None
    assert [one.reason for one in status.check.named(NodeVerdict.FAULT)] == [
        "stage compute: CUDA error: uncorrectable ECC error encountered"
    ]
    (ill / "1").unlink()
    replacement = job.node(1, incarnation=2)
    job.running(1, 3)
    status = job.published(JobState.RUNNING, 1)
    assert status.check is not None
    assert (status.check.number, status.check.state, status.check.count) == (2, CheckState.PASSED, 3)
    job.finish()

    assert [said(process)[0] for process in (coordinator, stays, also, replacement)] == [Exit.OK] * 4


def test_a_probe_that_hangs_is_ended_in_time(job: Agents) -> None:
    """It is this node's own fault, since it had met nobody yet; the next task does not wait for its partner either."""
    ill = illnesses(job.folder, {0: "stuck"})
    job.write_plan(min_nodes=2, max_nodes=2, check_level=1, check_timeout=2.0, check_only=True, check_program=probe(ill))
    processes = [job.coordinator(), job.node(0), job.node(1)]

    assert [said(process)[0] for process in processes] == [Exit.OK] * 3
    status = job.status()
    assert status is not None
    assert status.check is not None
    assert "local rank 0: stage compute: it was not over within 2 s" in status.check.nodes[0].reason


def test_the_command_checks_nodes_of_this_machine_with_the_real_probe(tmp_path: Path) -> None:
    """Torch computes and gathers; a table, a picture, JSON, and nothing is left behind."""
    env = {**os.environ, "RALLYPOINT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    words = ["check", "--nodes", "2", "--level", "2", "--timeout", "20m", "--svg", str(tmp_path / "links.svg"), "--json"]

    ended = subprocess.run(
        [sys.executable, "-m", "rallypoint.cli.main", *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    check = json.loads(ended.stdout)
    assert [one["verdict"] for one in check["nodes"]] in (["good"] * 2, ["straggler", "good"])
    assert all(one["compute"] > 0 and one["transfer"] > 0 for one in check["nodes"])
    assert check["links"][0]["bandwidth"] > 0
    assert check["whole"]["error"] == ""
    assert check["whole"]["busbw"] > 0
    ET.parse(tmp_path / "links.svg")
    assert not list((tmp_path / "home" / "jobs").iterdir())
