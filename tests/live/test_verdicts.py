"""Verdicts on real processes: a wrong extension is refused, and each answer has its effect on a job that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import Answer, Cause, FaultKind
from tests.live.jobs import Job, cli

pytestmark = pytest.mark.usefixtures("light")

#: Reports a step, then ends in the way that the first argument says, but only in the first incarnation of its node.
SCRIPT = """
import os, pathlib, sys, time
from rallypoint.training import report_progress

how, marker = sys.argv[1], pathlib.Path(os.environ["RALLYPOINT_CHECKPOINT_DIR"]) / "ended"
marker.parent.mkdir(parents=True, exist_ok=True)
report_progress(1)
if os.environ["GROUP_RANK"] == str(int(os.environ["GROUP_WORLD_SIZE"]) - 1) and not marker.exists():
    marker.write_text(os.environ["TORCHELASTIC_ERROR_FILE"])
    print("about to end", file=sys.stderr, flush=True)
    raise SystemExit(int(how))
while "wait" in sys.argv and not (marker.parent / "enough").exists():
    time.sleep(0.05)
report_progress(2)
"""

EXTENSION = """
from rallypoint.training.failover import Failover, FailoverExtension

class Decides(FailoverExtension):
    def decide(self, failure):
        return {41: Failover.ABORT, 42: Failover.NODE, 43: Failover.GLOBAL}.get(failure.workers[0].exit_code, Failover.NORMAL)
"""


def job(folder: Path, home: Path, *args: object, tolerance: dict[str, Any], **fields: Any) -> Job:
    script = folder / "ends.py"
    script.write_text(SCRIPT)
    (folder / "my_failover.py").write_text(EXTENSION)
    tolerance = {"retry_limit": 1, "retry_pause_period": 0, "failure_grace_period": "1s", **tolerance}
    return Job.write(folder, home, entrypoint=str(script), args=list(args), fault_tolerance=tolerance, **fields)


def ended(job: Job) -> JobRecord:
    """Supervise the job in the process that submits it; return its last record."""
    cli("submit", job.folder / "job.json", "--supervise", "here", check=False)
    return job.ends()


def test_a_terminal_exit_code_ends_the_job_at_once(tmp_path: Path, home: Path) -> None:
    """One round, one attempt: nothing is restarted, nothing reset, and the record names the rule."""
    record = ended(job(tmp_path, home, 3, nodes=1, tolerance={"terminal_exit_codes": [3]}))
    assert (record.phase, record.attempt, record.retries) == (Phase.FAILED, 1, 0)
    assert record.verdict is not None
    assert record.verdict.reason == "TerminalExitCode"
    assert record.verdict.message.endswith("exit code 3 is terminal")
    [incident] = record.incidents
    assert (incident.answer, incident.kind, incident.id.round) == (Answer.FAIL_NOW, FaultKind.EXIT_CODE, 1)


def test_a_rule_sends_a_node_away_and_another_takes_its_place(tmp_path: Path, home: Path) -> None:
    """The node is replaced, its budget pays, no worker restart is charged, and the job succeeds with both nodes."""
    rule = {"log_pattern": "about to end", "answer": "retry-elsewhere"}
    sent = job(tmp_path, home, 9, "wait", nodes=2, tolerance={"rules": [rule]}, recovery={"max_restarts": 0})
    sent.submit()
    status = sent.trains(ranks=2, round_=2)
    assert {(m.node, m.incarnation) for m in status.world} == {(0, 1), (1, 2)}
    (tmp_path / "checkpoints" / "enough").touch()
    record = sent.ends()
    assert (record.phase, record.attempt) == (Phase.SUCCEEDED, 1)
    [incident] = [i for i in record.incidents if i.cause is Cause.NODE]
    assert (incident.answer, incident.id.node) == (Answer.RETRY_ELSEWHERE, 1)
    assert incident.culprit is not None
    assert (incident.culprit.rank, incident.culprit.exit_code) == (1, 9)
    assert incident.rule.startswith("rule 1 of fault_tolerance.rules")
    assert not [i for i in record.incidents if i.cause is Cause.PROCESS]


def test_an_extension_that_answers_abort_ends_the_job(tmp_path: Path, home: Path) -> None:
    """Its word is final, whatever budgets are left."""
    tolerance = {"dynamic_failover_extension": "my_failover::Decides"}
    record = ended(job(tmp_path, home, 41, nodes=1, tolerance=tolerance))
    assert (record.phase, record.attempt) == (Phase.FAILED, 1)
    assert record.verdict is not None
    assert record.verdict.reason == "FailNow"
    assert record.verdict.message.endswith("extension my_failover::Decides returned ABORT")


@pytest.mark.extended
def test_an_extension_that_answers_global_resets_the_job_once(tmp_path: Path, home: Path) -> None:
    """One reset is charged, and the second attempt runs to its end."""
    tolerance = {"dynamic_failover_extension": "my_failover::Decides"}
    record = ended(job(tmp_path, home, 43, nodes=1, tolerance=tolerance))
    assert (record.phase, record.attempt, record.retries) == (Phase.SUCCEEDED, 2, 1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("no_such_module::X", "cannot import module no_such_module", id="module", marks=pytest.mark.extended),
        pytest.param("my_failover::Nobody", "has no class Nobody", id="class"),
        pytest.param("my_failover::FailoverExtension", "without arguments", id="abstract", marks=pytest.mark.extended),
    ],
)
def test_a_wrong_extension_is_an_error_at_submission(tmp_path: Path, home: Path, name: str, why: str) -> None:
    """One line that names field, value and what is wrong; nothing is created, not even beside the user's files."""
    refused = job(tmp_path, home, 0, nodes=1, tolerance={"dynamic_failover_extension": name})
    done = cli("submit", refused.folder / "job.json", check=False)
    assert done.returncode != 0
    assert f"fault_tolerance.dynamic_failover_extension: {name}: " in done.stderr
    assert why in done.stderr
    assert not refused.place.exists()
    assert not (tmp_path / "__pycache__").exists()


def test_the_code_of_an_agent_that_was_sent_away_is_its_own() -> None:
    """No other end of an agent is mistaken for it."""
    assert [code.name for code in Exit if code == Exit.ELSEWHERE] == ["ELSEWHERE"]
    assert len({int(code) for code in Exit}) == len(Exit.__members__)


@pytest.mark.extended
def test_a_module_that_the_first_workers_do_not_find_ends_the_job(tmp_path: Path, home: Path) -> None:
    """No restart and no reset, and the verdict names it; a missing script or program is refused at submission."""
    job = Job.write(tmp_path, home, 1, 0.01, entrypoint={"module": "no_such_module"}, nodes=1, args=[]).submit()

    record = job.ends()

    assert record.phase is Phase.FAILED, job.tell()
    assert (record.attempt, len(record.incidents)) == (1, 1), job.tell()
    assert record.incidents[0].answer is Answer.FAIL_NOW
    assert "the first workers of the job did not find no_such_module" in record.incidents[0].rule
