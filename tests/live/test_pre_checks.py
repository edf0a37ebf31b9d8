"""Pre-check operators in real jobs: they are asked before training begins, and what they say has its effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.capabilities.user_hooks.wire import StatusSection
from rallypoint.wire.pre_check import PreCheckState
from rallypoint.wire.status import Outcome
from tests.live.jobs import Job, cli
from tests.waiting import eventually

pytestmark = pytest.mark.live

OPERATORS = """
import pathlib

HERE = pathlib.Path(__file__).parent

class Disk:
    asked = 0

    @classmethod
    def get_retry_interval_secs(cls):
        return 0.05

    def check(self, job_args):
        Disk.asked += 1
        (HERE / "asked").write_text(str(Disk.asked))
        (HERE / "trained").write_text(str(any((HERE / "checkpoints").glob("rank-*"))))
        return Result(0 if (HERE / "room").exists() else 1, f"asked for {job_args.job_name}")

    def failed_actions(self, result_msg, abnormal_nodes):
        return []

class Ends(Disk):
    def failed_actions(self, result_msg, abnormal_nodes):
        return ["job_abortion"]

class Result:
    def __init__(self, result, result_msg):
        self.result, self.result_msg, self.abnormal_nodes = result, result_msg, []
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: None):
    """A job with operators beside it; `job(ops)` writes it."""
    home = tmp_path / "home"
    monkeypatch.setenv("RALLYPOINT_HOME", str(home))
    (tmp_path / "checks_of_job.py").write_text(OPERATORS)
    jobs: list[Job] = []

    def write(ops: str) -> Job:
        jobs.append(Job.write(tmp_path, home, 3, 0.01, workdir=str(tmp_path), pre_check_ops=ops))
        return jobs[-1]

    yield write
    if jobs and jobs[-1].place.exists():
        cli("delete", jobs[-1].name, check=False)


@pytest.mark.argument("pre_check_ops")
@pytest.mark.extended
def test_training_begins_when_the_operators_are_content(job, tmp_path: Path) -> None:
    """Not before; the status tells which was asked, how often, and which was bypassed."""
    ops = '[("checks_of_job", "Disk", True), ("no.such.module", "Any", False)]'
    running = job(ops).submit()
    eventually(lambda: (tmp_path / "asked").exists() and int((tmp_path / "asked").read_text() or 0) >= 3, why=running.tell)
    status = running.status
    assert status is not None
    assert status.fence.round == 0
    (tmp_path / "room").touch()

    record = running.ends()
    status = running.status

    assert record.verdict is not None
    assert record.verdict.outcome is Outcome.SUCCEEDED
    assert status is not None
    assert [(one.operator, one.state) for one in StatusSection.of(status).pre_checks] == [
        ("checks_of_job.Disk", PreCheckState.PASSED),
        ("no.such.module.Any", PreCheckState.BYPASSED),
    ]
    assert (
        StatusSection.of(status).pre_checks[0].tries >= 3
    )  # the third may have found the room that was made while it was asked
    assert (tmp_path / "trained").read_text() == "False"


@pytest.mark.argument("pre_check_ops")
def test_an_operator_ends_the_job(job) -> None:
    """Without a retry: what it wants is final."""
    record = job('[("checks_of_job", "Ends", True)]').submit().ends()

    assert record.attempt == 1
    assert record.verdict is not None
    assert "pre-check checks_of_job.Ends ended the job: asked for counter" in record.verdict.message


@pytest.mark.extended
def test_a_class_that_is_missing_is_an_error_at_submission(job, tmp_path: Path) -> None:
    """Nothing is started, and the class is named."""
    job('[("checks_of_job", "Disc", True)]')
    refused = cli("submit", tmp_path / "job.json", check=False)

    assert refused.returncode == 1
    assert "health.pre_check_ops: checks_of_job.Disc: module checks_of_job has no class Disc" in refused.stderr
