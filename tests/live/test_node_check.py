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

from rallypoint.capabilities.node_check.wire import StatusSection
from rallypoint.wire.exits import Exit
from tests.live.agent_processes import ROOT, Agents, agents, said
from tests.live.node_check import Case, found, illnesses, play, probe
from tests.waiting import PATIENCE


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def rallypoint(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command about the jobs in a folder, there."""
    return subprocess.run(
        [sys.executable, "-m", "rallypoint.cli.main", *words],
        env={**os.environ, "RALLYPOINT_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(nodes=2), id="two that are well", marks=pytest.mark.extended),
        pytest.param(Case(nodes=3, ill={1: "network"}), id="one of three is broken", marks=pytest.mark.extended),
        pytest.param(Case(nodes=5, ill={0: "slow-network", 3: "lost"}), id="one is slow and one broken"),
    ],
)
def test_who_is_ill_is_found(job: Agents, case: Case) -> None:
    """All the other cases are played by `make node-check`."""
    assert found(play(job, case)) == case.expected()


#: A probe that fails on node 1 until that was replaced.
FAILS_ONCE = """\
#!/bin/sh
case "$(readlink /proc/$$/fd/1)" in */nodes/1/attempt-1.1/*) echo "uncorrectable ECC error" >&2; exit 3;; esac
echo '{"compute": 1, "transfer": 1, "moved": 100, "latency": 0.1}'
"""


@pytest.mark.extended
def test_a_faulty_node_is_replaced_and_its_replacement_checked_before_all_train(tmp_path: Path) -> None:
    """By a supervisor; nobody has trained before, and the incident asks for another machine."""
    program = tmp_path / "probe.sh"
    program.write_text(FAILS_ONCE)
    program.chmod(0o755)
    health = {"precheck": 1, "precheck_timeout": "20m", "precheck_program": [str(program)]}
    job = {"name": "checked", "entrypoint": ["true"], "nodes": 3, "health": health}
    (tmp_path / "job.json").write_text(json.dumps({**job, "rendezvous": {"last_call_timeout": "0s"}}))

    ended = rallypoint(tmp_path, "submit", "job.json", "--supervise", "here")
    shown = rallypoint(tmp_path, "status", "checked", "--json")

    assert ended.returncode == 0, ended.stderr
    status = json.loads(shown.stdout)["status"]
    assert [(m["node"], m["incarnation"]) for m in status["world"]] == [(0, 1), (1, 2), (2, 1)]
    assert (status["fence"]["round"], status["check"]["number"], status["check"]["state"]) == (1, 2, "passed")
    incident = status["incidents"][0]
    assert (incident["cause"], incident["answer"], incident["culprit"]["node"]) == ("node", "retry-elsewhere", 1)
    assert "did not pass the node check (fault): stage start: uncorrectable ECC error" in incident["reason"]


def test_a_probe_that_hangs_is_ended_in_time(job: Agents) -> None:
    """It is this node's own fault, since it had met nobody yet; the next task does not wait for its partner either."""
    ill = illnesses(job.folder, {0: "stuck"})
    job.write_plan(min_nodes=2, max_nodes=2, check_level=1, check_timeout=2.0, check_only=True, check_program=probe(ill))
    processes = [job.coordinator(), job.node(0), job.node(1)]

    assert [said(process)[0] for process in processes] == [Exit.OK] * 3
    status = job.status()
    assert status is not None
    check = StatusSection.of(status).check
    assert check is not None
    assert "local rank 0: stage compute: not completed within 2 s" in check.nodes[0].reason


@pytest.mark.extended
def test_the_command_checks_nodes_of_this_machine_with_the_real_probe(tmp_path: Path) -> None:
    """Torch computes and gathers; a table, a picture, JSON, and nothing is left behind."""
    words = ["check", "--nodes", "2", "--level", "2", "--timeout", "20m", "--svg", "links.svg", "--json"]

    ended = rallypoint(tmp_path, *words)

    assert ended.returncode == 0, ended.stderr
    check = json.loads(ended.stdout)
    assert [one["verdict"] for one in check["nodes"]] in (["good"] * 2, ["straggler", "good"])
    assert all(one["compute"] > 0 and one["transfer"] > 0 for one in check["nodes"])
    assert check["links"][0]["bandwidth"] > 0
    assert check["whole"]["error"] == ""
    assert check["whole"]["busbw"] > 0
    ET.parse(tmp_path / "links.svg")
    assert not list((tmp_path / "home" / "jobs").iterdir())
