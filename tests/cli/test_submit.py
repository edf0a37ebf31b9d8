from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.backends.site import Site
from rallypoint.cli.document import JobDocument
from rallypoint.cli.submit import Submitted
from rallypoint.supervision.record import Phase
from rallypoint.wire.codec import loads
from rallypoint.wire.plan import OrphanPolicy
from rallypoint.wire.status import Outcome
from tests.cli.fake import Place, becomes
from tests.cli.samples import KILLED, begun, over, submitted, training


def test_three_lines_tell_what_happened_and_where_to_look(run, place, job_file, capsys):
    """A submission leaves a supervisor behind, and says so."""
    assert run("submit", job_file) == 0

    assert capsys.readouterr().out.splitlines() == [
        f"Job digits submitted: 1 to 2 nodes x 2 processes, supervisor {os.getpid()}",
        "Watch it: rallypoint status digits   rallypoint logs digits",
        "Folder: /jobs/digits",
    ]
    assert place.spawned == [("digits", Site())]
    assert place.world.record("digits").owner == "cli"


def test_another_home_is_part_of_every_hint(run, place, job_file, capsys):
    """What is printed can be copied."""
    assert run("--home", "/data/jobs", "submit", job_file) == 0

    assert "rallypoint --home /data/jobs status digits" in capsys.readouterr().out
    assert place.spawned == [("digits", Site(home="/data/jobs"))]
    assert place.sites == [Site(home="/data/jobs")]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--home", "a", "submit"), id="before the command"),
        pytest.param(("submit", "--home", "a"), id="after the command"),
        pytest.param(("--home", "b", "submit", "--home", "a"), id="after the command wins"),
    ],
)
def test_home_may_stand_anywhere(run, place, job_file, words):
    """A relative one is made absolute, since the supervisor starts elsewhere."""
    assert run(*words, job_file) == 0
    assert place.sites == [Site(home=str(Path("a").absolute()))]


def test_json_tells_the_same(run, job_file, capsys):
    """One document with the record, which the wire's codec reads back."""
    assert run("submit", job_file, "--json", "--name", "other", "--set", "nodes=4") == 0

    done = loads(Submitted, capsys.readouterr().out)
    assert (done.name, done.how, done.size, done.folder) == ("other", "submitted", "4 nodes x 2 processes", "/jobs/other")
    assert done.record.name == "other"


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        pytest.param((), OrphanPolicy.CONTINUE, id="by default it goes on"),
        pytest.param(("--set", "fault_tolerance.orphan_policy=stop"), OrphanPolicy.STOP, id="the job's own"),
        pytest.param(("--orphan-policy", "stop"), OrphanPolicy.STOP, id="asked for"),
        pytest.param(
            ("--set", "fault_tolerance.orphan_policy=stop", "--orphan-policy", "continue"),
            OrphanPolicy.CONTINUE,
            id="what is asked for wins",
        ),
    ],
)
def test_the_orphan_policy_of_the_command_line(run, place, job_file, words, policy):
    """A job that is submitted by hand goes on without a supervisor, unless it is told not to."""
    assert run("submit", job_file, *words) == 0
    assert place.world.jobs["digits"].blueprint.plan.orphan_policy is policy


def test_a_job_that_is_over_starts_again(run, place, job_file, capsys):
    """Whoever submits by hand wants it to run: the next attempt begins, with all the memory of the first."""
    run("submit", job_file)
    record = place.world.record("digits")
    place.put(dataclasses.replace(over(outcome=Outcome.FAILED), digest=record.digest))
    capsys.readouterr()

    assert run("submit", job_file) == 0

    assert capsys.readouterr().out.startswith("Job digits started again as attempt 2: ")
    assert [attempt.number for attempt in place.world.record("digits").attempts] == [1, 2]


def test_a_job_that_lost_its_supervisor_goes_on(run, place, job_file, capsys):
    """After a reboot the same command takes it on again."""
    run("submit", job_file)
    capsys.readouterr()

    assert run("submit", job_file) == 0

    assert capsys.readouterr().out.startswith("Job digits already exists; it had no supervisor and continues now: ")
    assert len(place.spawned) == 2


def test_another_specification_is_refused(run, place, job_file, capsys):
    """One clear error, and nothing is left behind."""
    run("submit", job_file)
    before = place.world.record("digits")
    capsys.readouterr()

    assert run("submit", job_file, "--set", "nodes=5") == 1

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("rallypoint: ")
    assert "is already running with another specification" in err
    assert (place.world.record("digits"), len(place.spawned)) == (before, 1)


def test_the_same_job_is_attached_to(run, place, job_file, capsys):
    """A job that runs under a supervisor stays as it is, and no second supervisor starts."""
    run("submit", job_file)
    place.hold("digits", "cli pid 7 on ada")
    before = place.world.record("digits")
    capsys.readouterr()

    assert run("submit", job_file) == 0

    out, err = capsys.readouterr()
    assert err == ""
    size = "1 to 2 nodes x 2 processes"
    assert out.startswith(f"Job digits is already running, and nothing was started: {size} (supervisor: cli pid 7 on ada)\n")
    assert run("submit", job_file, "--json") == 0
    told = loads(Submitted, capsys.readouterr().out)
    assert (told.how, told.supervise, told.supervisor_pid, told.held_by) == ("attached", "", 0, "cli pid 7 on ada")
    assert (place.world.record("digits"), len(place.spawned)) == (before, 1)


@pytest.mark.parametrize(
    ("record", "refused"),
    [
        pytest.param(dataclasses.replace(begun(), owner="task-7"), True, id="that runs"),
        pytest.param(
            dataclasses.replace(over(outcome=Outcome.FAILED), owner="task-7"), True, id="whose result it has not taken"
        ),
        pytest.param(
            dataclasses.replace(over(outcome=Outcome.FAILED), owner="task-7", collected_by="task-7"),
            False,
            id="unless it is over and its result taken",
        ),
    ],
)
def test_a_job_of_another_owner_is_left_to_it(run, place, job_file, capsys, record, refused):
    """An Airflow task must find its job and its result."""
    place.put(record)

    assert run("submit", job_file) == int(refused)
    assert ("belongs to task-7" in capsys.readouterr().err) is refused
    assert (place.world.record("digits").owner == "cli") is not refused


def test_what_the_backend_refuses_is_told(run, place, job_file, capsys):
    """A missing script, a port in use, a full disk: the backend's words, and no supervisor."""
    place.world.refusal = "entrypoint: the script is not there"

    assert run("submit", job_file) == 1
    assert capsys.readouterr().err == "rallypoint: entrypoint: the script is not there\n"
    assert place.spawned == []


def test_a_file_that_is_not_there_is_told(run, capsys, tmp_path):
    """No traceback, but the file's name."""
    assert run("submit", tmp_path / "none.yaml") == 1
    assert capsys.readouterr().err.startswith(f"rallypoint: {tmp_path}/none.yaml")


def ended_process() -> int:
    """Return the number of a process that has ended."""
    return subprocess.Popen([sys.executable, "-c", ""]).wait() or 2**22 - 1


@pytest.mark.parametrize("words", [(), ("--watch",)], ids=["at once", "while it is watched"])
def test_a_supervisor_that_ends_at_once_is_an_error(run, place, job_file, capsys, words):
    """The job is there and nobody sees to it: the message says where to read why and how to go on."""
    place.supervisor_pid, place.takes_on = ended_process(), False

    assert run("submit", job_file, *words) == 1
    assert "supervisor.log" in (told := capsys.readouterr().err)
    assert "rallypoint supervise digits" in told


WATCHED = [becomes(begun(), training()), becomes(over(outcome=Outcome.SUCCEEDED), training())]
FAILING = [becomes(begun(), training()), becomes(over(outcome=Outcome.FAILED, culprit=KILLED), training())]


def test_watch_ends_well_when_the_job_does(run, place, job_file, capsys):
    """Lines of what happens, then how it ended; exit code 0."""
    place.script = [*WATCHED]

    assert run("submit", job_file, "--watch") == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Job digits submitted: ")
    assert any("round: 2 nodes, 4 ranks" in line for line in lines)
    assert lines[-1].startswith("Job digits succeeded in attempt 1")


def test_watch_ends_with_the_story_when_the_job_fails(run, place, job_file, capsys):
    """Which rank on which node ended how, the last lines of its log, and exit code 1."""
    place.script = [*FAILING]

    assert run("submit", job_file, "--watch") == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[-4].startswith("Job digits failed in attempt 1 after 2m 03s (WorkersFailed): rank 3 on node 1 was killed")
    assert lines[-2:] == ["  epoch 2", "  step 138"]


def test_watch_with_json_prints_a_document_a_line(run, place, job_file, capsys):
    """Every line is whole, and the last one has the verdict."""
    place.script = [*FAILING]

    assert run("submit", job_file, "--watch", "--json") == 1

    documents = [loads(JobDocument, line) for line in capsys.readouterr().out.splitlines()]
    assert [document.record.phase for document in documents] == [Phase.RUNNING, Phase.RUNNING, Phase.FAILED]


def press_ctrl_c(_: Place) -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["lines", "JSON"])
def test_ctrl_c_leaves_the_job_running(run, place, job_file, capsys, words):
    """It asks nothing, says that the job goes on, and ends with 130."""
    place.script = [becomes(begun(), training()), press_ctrl_c]

    assert run("submit", job_file, "--watch", *words) == 130

    out, err = capsys.readouterr()
    assert err == "Job digits continues; to watch it again: rallypoint status digits --watch\n"
    assert "goes on" not in out
    record = place.world.record("digits")
    assert (record.phase, record.deletion) == (Phase.RUNNING, False)


def delete(place: Place) -> None:
    del place.world.jobs["digits"]


def test_a_job_that_is_deleted_while_watched_is_told(run, place, job_file, capsys):
    """Neither success nor a story; exit code 1."""
    place.script = [delete]

    assert run("submit", job_file, "--watch") == 1
    assert capsys.readouterr().err == "rallypoint: job digits was deleted\n"


def test_waiting_for_an_earlier_job_to_go_is_told(run, place, job_file, capsys):
    """A submission on top of a deletion sees it through first."""
    place.put(dataclasses.replace(submitted(), deletion=True))

    assert run("submit", job_file) == 0

    out, err = capsys.readouterr()
    assert err == "Job digits is still being deleted; waiting ...\n"
    assert out.startswith("Job digits submitted: ")


def test_the_documents_of_a_submission_are_json(run, job_file, capsys):
    """Any reader of JSON can read them."""
    run("submit", job_file, "--json")

    assert json.loads(capsys.readouterr().out)["version"] == 1
