"""What a worker prints of an error that ends it, in the first round and after a warm restart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.training import startup
from rallypoint.wire.exits import Exit
from tests.live.agent_processes import SCRIPTS, Agents, agents, said
from tests.live.test_zygote import standing_by
from tests.waiting import eventually

CRASHING, FAILING = SCRIPTS / "crashing.py", SCRIPTS / "failing.py"
STARTUP = str(Path(startup.__file__).parent)
TRACEBACK, AGAIN = "Traceback (most recent call last):", "rallypoint: the same error as on rank "


@pytest.fixture
def light_job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def crashed(job: Agents, way: str, *flags: object, workers: int = 1, restarts: int = 2) -> str:
    """Run crashing.py until its restarts are used up; return the output."""
    options = ("--standalone", "--nproc-per-node", workers, "--max-restarts", restarts, *flags)
    code, output = said(job.run(*options, CRASHING, job.work, way))
    assert code == Exit.JOB_FAILED, output
    return output


def test_a_deterministic_crash_prints_its_traceback_once(light_job: Agents) -> None:
    """The rounds after the first have one line each, and the address of an object in the text makes no other error."""
    output = crashed(light_job, "same")

    # The error and its cause.
    assert (output.count(TRACEBACK), output.count(f"{AGAIN}0 in round 1: ValueError: the loss of ")) == (2, 2), output
    assert "error:   ValueError: the loss of " in output, output


@pytest.mark.extended
def test_another_error_prints_whole(light_job: Agents) -> None:
    """The text of an error and of its cause decides, in each round."""
    output = crashed(light_job, "other")

    assert (output.count(TRACEBACK), AGAIN in output) == (6, False), output
    assert [f"ValueError: step {number}" in output for number in range(3)] == [True] * 3, output


def test_the_exception_hook_of_a_script_is_called_each_time(light_job: Agents) -> None:
    """What it prints is the script's own business."""
    output = crashed(light_job, "hook")

    assert (output.count("the script's own hook: ValueError"), AGAIN in output, TRACEBACK in output) == (3, False, False), (
        output
    )


def test_each_rank_of_a_round_prints_its_error_as_under_torchrun(light_job: Agents) -> None:
    """One may be stopped before it comes to that; of a later round neither prints a traceback."""
    output = crashed(light_job, "same", workers=2, restarts=1)

    first, _, second = output.partition("restarting workers: ")
    assert first.count(TRACEBACK) in (2, 3, 4), output
    assert (second.count(TRACEBACK), second.count(AGAIN) in (1, 2)) == (0, True), output


def test_the_error_file_and_the_copied_log_hold_the_traceback(light_job: Agents) -> None:
    """What the console shows in one line stands whole in torch's error file, and a file that is not copied has all of it."""
    logs = light_job.folder / "logs"
    output = crashed(light_job, "same", "--tee", 3, "--log-dir", logs, restarts=1)

    [again] = [path for path in logs.rglob("*error.json") if path.stat().st_size]
    recorded = json.loads(again.read_text())["message"]
    assert recorded["message"].startswith("ValueError: the loss of ")
    assert recorded["extraInfo"]["py_callstack"].count(TRACEBACK) == 2
    assert output.count(AGAIN) == 1, output


@pytest.mark.extended
def test_a_file_of_a_round_holds_the_traceback_of_the_round(light_job: Agents) -> None:
    """A file that is not copied to the console is read by itself."""
    logs = light_job.folder / "logs"
    output = crashed(light_job, "same", "--redirects", 3, "--log-dir", logs)

    files = [path.read_text() for path in logs.rglob("*") if path.is_file() and "ValueError: the loss" in path.read_text()]
    assert [text.count(TRACEBACK) for text in files] == [2, 2, 2], output
    assert not any(AGAIN in text for text in files)


def test_what_the_script_has_recorded_stays(light_job: Agents) -> None:
    """The error file of a script that uses torch's `@record` is not written over."""
    logs = light_job.folder / "logs"
    crashed(light_job, "noted", "--log-dir", logs, restarts=1)

    texts = [path.read_text() for path in logs.rglob("*error.json")]
    assert ["the script's own" in text for text in texts] == [True, True]


@pytest.mark.extended
def test_our_frames_are_in_no_traceback(job: Agents) -> None:
    """Of loaders, backward passes, collectives, what saves and what ends; printed by the script, a logger and Python."""
    run = job.run("--standalone", "--nproc-per-node", 1, "--max-restarts", 1, FAILING, job.work)
    eventually((job.work / "failed-0").exists, timeout=60.0)
    standing_by(run.pid, set(), 2)
    (job.work / "go").touch()

    code, output = said(run)

    first, _, second = output.partition("restarting workers: ")
    assert (code, STARTUP in output) == (Exit.JOB_FAILED, False), output
    assert "During handling of the above exception, another exception occurred" in first, output
    assert re.search(rf"{AGAIN}0 in round 1: ValueError: no sample 0", second), output
    for text in (first, second):
        assert text.count("== ") == 10, output
        assert all(name in text for name in ("fetch.py", "autograd/__init__.py", "serialization.py", "no gradient")), output
