"""Workers that are done end, with the status of their script, whatever torch still does in their process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.exits import Exit
from tests.live.agent_processes import SCRIPTS, Agents, agents, said
from tests.live.jobs import processes
from tests.live.test_zygote import standing_by
from tests.soak import endings
from tests.waiting import PATIENCE, eventually

PENDING, ENDING = SCRIPTS / "pending.py", SCRIPTS / "ending.py"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


@pytest.mark.extended
def test_a_group_whose_last_holder_is_a_reducer_ends(job: Agents) -> None:
    """Here the race between the destructor of the group and its thread is always lost, unless the GIL is released."""
    run = job.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 0, PENDING, job.work)

    code, output = said(run)

    assert (code, output.count("is done")) == (Exit.OK, 2), output


@pytest.mark.extended
def test_a_recovered_run_ends(job: Agents) -> None:
    """A fork has imported torch.distributed.nn before it had a group, so nothing keeps the group by accident."""
    run = job.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, PENDING, job.work, 1)
    standing_by(run.pid, set(), 3)
    (job.work / "kill").touch()

    code, output = said(run)

    # Rank 0 may be through with round 1, too: its collective fails when rank 1 is killed.
    _, regroup, after = output.partition("restarting workers: rank 1")
    assert (code, bool(regroup), after.count("is done")) == (Exit.OK, True, 2), output


@pytest.fixture
def light_job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def ended(job: Agents, *args: object, grace: float = 0.3, workers: int = 1) -> tuple[int, str]:
    """Run ending.py to its end, with a short grace."""
    options = ("--standalone", "--nproc-per-node", workers, "--max-restarts", 0, "--exit-grace", grace)
    return said(job.run(*options, ENDING, job.work, *args))


WARNING = "its process did not exit within exit_grace="


def test_a_teardown_that_hangs_is_ended_and_the_status_of_the_script_counts(light_job: Agents) -> None:
    """The job succeeds, and one warning for each worker names the cause."""
    code, output = ended(light_job, "return", "stuck", workers=2)

    assert (code, output.count(WARNING), output.count("the script ended (exit code 0)")) == (Exit.OK, 2, 2), output
    assert output.count("exited with code 0") == 2, output


@pytest.mark.parametrize(
    ("way", "how", "error"),
    [
        pytest.param("code", "exited with code 3", "", id="exit code"),
        pytest.param("text", "exited with code 1", "no data", id="exit with a text", marks=pytest.mark.extended),
        pytest.param(
            "error", "exited with code 1", "ValueError: the loss is not a number", id="exception", marks=pytest.mark.extended
        ),
        pytest.param(
            "unknown", "was killed by SIGKILL", "the script ended (exit code unknown)", id="SystemExit raised by the script"
        ),
    ],
)
def test_a_failure_stays_a_failure_when_its_teardown_hangs(light_job: Agents, way: str, how: str, error: str) -> None:
    """The agent reports the script's own exit code; where Python does not tell it, the job never counts as succeeded."""
    code, output = ended(light_job, way, "stuck")

    assert (code, output.count(WARNING)) == (Exit.JOB_FAILED, 1), output
    assert how in output, output
    assert error in output, output


def test_threads_and_exit_handlers_have_all_the_time_they_need(light_job: Agents) -> None:
    """A logger that uploads when the script is over is no hang: the grace begins behind the last exit handler."""
    code, output = ended(light_job, "slow")

    assert (code, WARNING in output) == (Exit.OK, False), output
    assert sorted(path.name for path in light_job.work.iterdir()) == ["atexit", "thread"]


def test_a_signal_from_elsewhere_counts_although_the_script_was_through(light_job: Agents) -> None:
    """The published status replaces the end by our own signal only."""
    run = light_job.run(
        "--standalone",
        "--nproc-per-node",
        1,
        "--max-restarts",
        0,
        "--exit-grace",
        3600,
        ENDING,
        light_job.work,
        "return",
        "stuck",
    )
    stuck = eventually(lambda: next(iter(light_job.work.glob("stuck-*")), None), why="a worker in its teardown")
    os.kill(int(stuck.name.partition("-")[2]), signal.SIGKILL)

    code, output = said(run)

    assert (code, WARNING in output, "was killed by SIGKILL" in output) == (Exit.JOB_FAILED, False, True), output


@pytest.mark.extended
@pytest.mark.parametrize(("number", "forks"), [pytest.param(8, 2, id="plain, -m"), pytest.param(1, 1, id="five lines, file")])
def test_a_sample_of_the_soak_ends(number: int, forks: int) -> None:
    """Two of the 200 runs of `make endings`: without the five lines both ranks are new, with them one."""
    planned = endings.kills_of(5, 16)[number]
    assert not planned.early

    result = endings.run(planned, seed=5, limit=60 * PATIENCE)
    assert result is not None

    assert (result.wrong, result.hung, result.forks) == ("", False, forks)


#: Rank 1 is killed in the first round; the next one does not end, or fails.
NO_END = """
import os, sys, time
from pathlib import Path
round_, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
(Path(sys.argv[1]) / f"trains-0-{rank}").write_text(str(os.getpid()))
if round_ and "fails" in __doc__:
    sys.exit(3)
time.sleep(3600)
"""


@pytest.mark.extended
@pytest.mark.parametrize(("way", "counts"), [("hangs", (1, 0)), ("fails", (0, 1))])
def test_the_soak_counts_a_run_that_does_not_recover(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], way: str, counts: tuple[int, int]
) -> None:
    """Its exit code is 1, also when it is called again with the same results, and its processes are ended."""
    script, results = tmp_path / "train.py", tmp_path / "results"
    script.write_text(f'"""{way}"""{NO_END}')
    args = ["--kills", "1", "--seed", "2", "--limit", "8", "--script", str(script), "--results", str(results)]

    codes = [endings.main(args), endings.main(args)]

    printed = capfd.readouterr().out
    assert codes == [1, 1], printed
    assert printed.count(f"| all | | | | 1 | {counts[0]} | {counts[1]} | 0 |") == 2, printed
    assert len(results.read_text().splitlines()) == 1
    folder = Path(printed.partition("; see ")[2].splitlines()[0])
    assert processes(str(folder)) == []
    shutil.rmtree(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.extended)])
def test_an_interrupted_soak_ends_its_runs(tmp_path: Path, number: int) -> None:
    """Nothing of the run is left, and it does not count."""
    script, results = tmp_path / "train.py", tmp_path / "results"
    script.write_text(f'"""hangs"""{NO_END}')
    command = [sys.executable, "-m", "tests.soak.endings", "--kills", "2", "--seed", "2", "--script", str(script)]
    with subprocess.Popen([*command, "--results", str(results)], env={**os.environ, "TMPDIR": str(tmp_path)}) as soak:
        eventually(lambda: list(tmp_path.glob("ending-*/trains-0-1")))
        soak.send_signal(number)
        code = soak.wait(timeout=30.0 * PATIENCE)

    assert (code, results.exists()) == (130, False)
    assert processes(str(tmp_path)) == []
    assert list(tmp_path.glob("ending-*")) == []
