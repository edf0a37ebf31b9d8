from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys

import pytest

from rallypoint.cli.document import JobDocument, JobsDocument, SupervisorSeen
from rallypoint.cli.main import main
from rallypoint.supervision.record import Phase
from rallypoint.wire.codec import loads
from rallypoint.wire.env import DEBUG
from rallypoint.wire.status import Outcome
from tests.cli.fake import Place, becomes, log_lines
from tests.cli.samples import HOLDER, NOW, begun, over, submitted, training


def other(record):
    return dataclasses.replace(record, name="other")


# --- status ----------------------------------------------------------------------------------------------------------------


def test_status_shows_all_jobs(run, place, capsys):
    """A row for each, by name."""
    place.put(other(submitted())).put(begun(), training())

    assert run("status") == 0

    titles, *rows = capsys.readouterr().out.splitlines()
    assert titles.split()[:2] == ["NAME", "PHASE"]
    assert [row.split()[:2] for row in rows] == [["digits", "Running"], ["other", "Submitted"]]


def test_status_of_an_empty_home_is_no_error(run, capsys):
    """Nothing is there, and nothing is wrong."""
    assert run("status") == 0
    assert capsys.readouterr().out == "no jobs\n"


def test_status_shows_one_job(run, place, capsys):
    """Its facts, its ranks and its incidents."""
    place.put(begun(), training())

    assert run("status", "digits") == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "job         digits",
        "phase       Running: training on 2 of 2 nodes",
        "attempt     1 of 4",
    ]
    assert sum("training" in line for line in lines) == 5
    assert "rank 3 node 1: SIGKILL" in lines[-1]


def test_status_as_json_is_read_back(run, place, capsys):
    """The record and the status, word for word."""
    place.put(begun(), training())
    stored = place.world.jobs["digits"].blueprint.plan

    assert run("status", "digits", "--json") == 0
    assert loads(JobDocument, capsys.readouterr().out) == JobDocument(record=begun(), plan=stored, status=training())

    assert run("status", "--json") == 0
    assert [job.record for job in loads(JobsDocument, capsys.readouterr().out).jobs] == [begun()]


@pytest.mark.parametrize(
    ("alive", "told", "seen"),
    [
        pytest.param(True, "rallypoint supervise (process 9992 on ada) since ", SupervisorSeen(alive=True), id="alive"),
        pytest.param(False, "none since ", SupervisorSeen(alive=False, lost_at=NOW), id="gone"),
    ],
)
def test_status_tells_who_supervises(run, place, capsys, alive, told, seen):
    """By its heartbeat: for people, and in the document."""
    place.put(dataclasses.replace(begun(), holder=HOLDER), training())
    if alive:
        place.beat(HOLDER)

    assert run("status", "digits") == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("supervisor"))
    assert line.split(maxsplit=1)[1].startswith(told)
    assert run("status", "digits", "--json") == 0
    assert loads(JobDocument, capsys.readouterr().out).supervisor == seen


def test_status_of_no_such_job_names_those_that_are_there(run, place, capsys):
    """A wrong name is mended at a glance."""
    assert run("status", "digits") == 1
    assert capsys.readouterr().err == "rallypoint: job 'digits' not found; there are no jobs\n"

    place.put(other(submitted())).put(dataclasses.replace(submitted(), name="third"))

    assert run("status", "digits") == 1
    assert capsys.readouterr().err == "rallypoint: job 'digits' not found; existing jobs: other, third\n"


def test_status_watch_ends_as_the_job_does(run, place, capsys):
    """The same as `submit --watch`."""
    place.put(begun(), training())
    place.script = [becomes(over(outcome=Outcome.SUCCEEDED), training())]

    assert run("status", "digits", "--watch") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Job digits succeeded")


def test_status_watch_of_no_such_job_is_an_error(run, capsys):
    """Exit code 1 and a message."""
    assert run("status", "digits", "--watch") == 1
    assert capsys.readouterr().err == "rallypoint: job 'digits' not found\n"


# --- logs ------------------------------------------------------------------------------------------------------------------

LINES = log_lines((0, "out", "a"), (1, "out", "b"), (0, "err", "c"), (0, "out", "d"), (1, "err", "e"))


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        pytest.param((), ["[0] a", "[1] b", "[0] c", "[0] d", "[1] e"], id="all ranks, each line with its rank"),
        pytest.param(("--rank", "0"), ["a", "c", "d"], id="one rank, as it is"),
        pytest.param(("--stdout",), ["[0] a", "[1] b", "[0] d"], id="standard output alone"),
        pytest.param(("--stderr", "--rank", "1"), ["e"], id="standard error of one rank"),
        pytest.param(("--tail", "1"), ["[1] b", "[0] c", "[0] d", "[1] e"], id="the last line of each stream"),
        pytest.param(("--tail", "1", "--stdout", "-r", "0"), ["d"], id="the last line of one stream"),
        pytest.param(("--tail", "0"), [], id="none"),
    ],
)
@pytest.mark.parametrize("follow", [(), ("--follow",)], ids=["now", "followed to the end"])
def test_logs_print_what_ranks_say(run, place, capsys, words, lines, follow):
    """In the order in which the backend tells them; a job that is over has nothing to follow."""
    place.put(over(outcome=Outcome.SUCCEEDED), lines=LINES)

    assert run("logs", "digits", *words, *follow) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_following_a_tail_tells_what_comes_and_nothing_twice(run, place, capsys):
    """The last lines first, then on from there."""
    place.put(over(outcome=Outcome.SUCCEEDED), lines=LINES)
    place.world.jobs["digits"].logs = list(LINES[:3])

    assert run("logs", "digits", "--tail", "1", "--follow", "--stdout") == 0
    assert capsys.readouterr().out.splitlines() == ["[0] a", "[1] b"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param(
            ("digits", "--rank", "4"),
            "--rank 4 is not allowed; job digits has ranks 0 to 3",
            id="no such rank",
        ),
        pytest.param(("other",), "job 'other' not found; existing jobs: digits", id="no such job"),
    ],
)
def test_logs_of_nobody_are_an_error(run, place, capsys, words, complaint):
    """Not silence."""
    place.put(begun())

    assert run("logs", *words) == 1
    assert capsys.readouterr().err == f"rallypoint: {complaint}\n"


# --- delete ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        pytest.param(2, "Job digits deleted: 2 nodes and its coordinator ended, its folder was removed", id="that runs"),
        pytest.param(1, "Job digits deleted: 1 node and its coordinator ended, its folder was removed", id="of one node"),
        pytest.param(0, "Job digits deleted: nothing was running, its folder was removed", id="that is over"),
    ],
)
def test_delete_ends_a_job_and_says_what_it_did(run, place, capsys, nodes, line):
    """It asks nothing, and nothing is left."""
    place.put(begun(), nodes=nodes)

    assert run("delete", "digits") == 0
    assert capsys.readouterr().out == f"{line}\n"
    assert place.world.jobs == {}


def test_deleting_what_is_not_there_is_an_error(run, capsys):
    """A script that deletes twice finds out."""
    assert run("delete", "digits") == 1
    assert capsys.readouterr().err == "rallypoint: job 'digits' not found; there are no jobs\n"


def press_ctrl_c(_: Place) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_deletion_that_is_cut_off_stays_asked_for(run, place, capsys):
    """Ctrl-C does not take it back."""
    place.put(begun(), nodes=2)
    place.hold("digits", "cli pid 7 on ada")
    place.script = [press_ctrl_c]

    assert run("delete", "digits") == 130
    assert "deletion of job digits" in capsys.readouterr().err
    assert place.world.record("digits").deletion


# --- plan ------------------------------------------------------------------------------------------------------------------


def test_plan_tells_what_would_be_done(run, place, job_file, capsys):
    """The command, every default and who set it, every object, every note; and nothing is done."""
    assert run("plan", job_file, "--set", "nproc_per_node=1", "--all") == 0

    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[:2] == [
        "Job digits: 1 to 2 nodes x 1 process, profile ladder",
        f"  python -u {job_file.parent}/train.py --epochs 3",
    ]
    assert "    max_restarts: 3" in lines
    assert "Defaults of profile ladder" in lines
    assert "  recovery.max_restarts                             3      default" in lines
    assert text.endswith(
        """
Objects to create, in this order
  folder   /jobs/digits
  process  node 0
           log      /jobs/agent.log
           command  agent 'a b'

Notes
  - image: not used here
"""
    )
    assert (place.world.jobs, place.spawned) == ({}, [])


def test_plan_as_json_has_the_same_parts(run, job_file, capsys):
    """Job, profile and its defaults, plan, objects and notes."""
    assert run("plan", job_file, "--json") == 0

    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["version", "job", "profile", "defaults", "given", "plan", "objects", "notes", "warnings"]
    assert document["plan"]["max_restarts"] == 3
    assert (document["profile"], document["defaults"]["recovery.max_restarts"], document["given"]) == ("ladder", 3, {})
    assert document["objects"][1]["command"] == ["agent", "a b"]


@pytest.mark.parametrize(
    ("settings", "default", "given"),
    [
        pytest.param(
            ["profile=appwrapper", "nodes=2", "fault_tolerance.retry_limit=5"],
            ("recovery.node_replacements", 0),
            ("fault_tolerance.retry_limit", 5),
            id="appwrapper",
        ),
        pytest.param(
            ["labels.fault-scheduling=grace", "labels.fault-retry-times=7", "recovery.max_restarts=3"],
            ("fault_tolerance.retry_limit", 7),
            ("mindcluster.fault_scheduling", "grace"),
            id="mindcluster",
        ),
    ],
)
def test_plan_tells_the_defaults_of_the_profile_from_what_was_given(run, job_file, capsys, settings, default, given):
    """In JSON under two keys, and in the people's form as a mark behind each value."""
    words = [word for setting in settings for word in ("--set", setting)]

    assert run("plan", job_file, *words, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert run("plan", job_file, *words, "--all") == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if "." in line}

    assert document["defaults"][default[0]] == default[1]
    assert document["given"][given[0]] == given[1]
    assert not document["defaults"].keys() & document["given"].keys()
    assert rows[default[0]] == [str(default[1]), "default"]
    assert rows[given[0]][:2] == [str(given[1]), "set;"]


# --- supervise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "code", "story"),
    [
        pytest.param(Outcome.SUCCEEDED, 0, "Job digits succeeded in attempt 1", id="that succeeds"),
        pytest.param(Outcome.FAILED, 1, "Job digits failed in attempt 1", id="that fails"),
    ],
)
def test_supervise_sees_a_job_to_its_end(run, place, capsys, outcome, code, story):
    """Its last words tell how the job ended."""
    place.put(over(outcome=outcome))

    assert run("supervise", "digits") == code
    assert capsys.readouterr().out.startswith(story)


def test_supervise_carries_out_a_deletion(run, place, capsys):
    """It was asked for while nobody supervised."""
    place.put(dataclasses.replace(begun(), deletion=True), nodes=2)

    assert run("supervise", "digits") == 0
    assert capsys.readouterr().out == "Job digits was deleted\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, id="Ctrl-C"),
    ],
)
def test_a_supervisor_that_is_ended_leaves_the_job_running(run, place, capsys, number, code):
    """SIGHUP is nothing to it before, and it says how to go on after."""
    place.put(begun(), training(), nodes=2)
    place.script = [lambda _, n=n: os.kill(os.getpid(), n) for n in (signal.SIGHUP, number)]

    assert run("supervise", "digits") == code

    assert capsys.readouterr().err.splitlines()[-1] == (
        "Job digits continues without a supervisor; to supervise it again: rallypoint supervise digits"
    )
    assert place.world.record("digits").phase is Phase.RUNNING
    assert place.world.alive("digits") == [(1, -1, 1), (1, 0, 1), (1, 1, 1)]


# --- errors ----------------------------------------------------------------------------------------------------------------


def break_with(error: BaseException):
    def step(_: Place) -> None:
        raise error

    return step


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            ModuleNotFoundError("No module named 'yaml'", name="yaml"),
            "this command requires the Python package yaml; install it with: pip install 'airflow-provider-rallypoint[client]'",
            id="the extra is missing",
        ),
        pytest.param(
            KeyError("x"), "unexpected error: KeyError: 'x'; set RALLYPOINT_DEBUG=1 for a traceback", id="a fault of our own"
        ),
    ],
)
def test_an_error_is_one_message(run, place, capsys, error, message):
    """No traceback is shown to people."""
    place.put(begun())
    place.script = [break_with(error)]

    assert run("status", "digits", "--watch") == 1
    assert capsys.readouterr().err == f"rallypoint: {message}\n"


def test_debug_shows_where(run, monkeypatch, capsys):
    """With RALLYPOINT_DEBUG=1 the traceback comes first."""
    monkeypatch.setenv(DEBUG, "1")

    assert run("status", "digits") == 1

    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("rallypoint: job 'digits' not found; there are no jobs\n")


def test_a_reader_that_has_gone_is_no_error(place, monkeypatch, capsys):
    """`rallypoint logs digits | head -1` ends in silence."""
    place.put(over(outcome=Outcome.SUCCEEDED), lines=LINES)
    reader, writer = os.pipe()
    os.close(reader)
    with io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True) as closed:
        monkeypatch.setattr(sys, "stdout", closed)

        assert main(["logs", "digits"], services=place.services) == 141

    monkeypatch.undo()
    assert capsys.readouterr().err == ""


# --- suspend, resume -------------------------------------------------------------------------------------------------------


def test_a_job_is_suspended_and_resumed(run, place, capsys):
    """The wish is in the record; what was wished before is said and changes nothing."""
    place.put(dataclasses.replace(begun(), holder=HOLDER), training()).beat(HOLDER)
    wishes = []
    for word in ("suspend", "suspend", "resume", "resume"):
        assert run(word, "digits") == 0
        wishes.append(place.world.record("digits").suspend)

    assert wishes == [True, True, False, False]
    assert capsys.readouterr().out.splitlines() == [
        "Job digits is being suspended; to resume it: rallypoint resume digits",
        "Job digits is already being suspended; to resume it: rallypoint resume digits",
        "Job digits is being resumed",
        "Job digits is not suspended; nothing was changed",
    ]


@pytest.mark.parametrize("word", ["suspend", "resume"])
def test_a_wish_that_nobody_fulfils_says_what_to_do(run, place, capsys, word):
    """A job without supervisor needs one first."""
    place.put(dataclasses.replace(begun(), holder=HOLDER, suspend=word == "resume"), training())

    assert run(word, "digits") == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "The job has no supervisor, so the request waits; start one: rallypoint supervise digits"
    )


@pytest.mark.parametrize("word", ["suspend", "resume"])
def test_only_what_goes_on_is_suspended_or_resumed(run, place, capsys, word):
    """A job that is over, deleted or absent is an error in one line."""
    assert run(word, "digits") == 1
    place.put(over(outcome=Outcome.FAILED))
    assert run(word, "digits") == 1
    place.put(dataclasses.replace(begun(), deletion=True))
    assert run(word, "digits") == 1

    assert capsys.readouterr().err.splitlines() == [
        "rallypoint: job 'digits' not found; there are no jobs",
        f"rallypoint: job digits cannot be {word}{'ed' if word == 'suspend' else 'd'} any more: the job has ended (Failed)",
        f"rallypoint: job digits cannot be {word}{'ed' if word == 'suspend' else 'd'} any more: the job is being deleted",
    ]


def test_plan_shows_the_settings_of_the_file_and_the_values_that_differ_from_the_defaults(run, job_file, capsys):
    """First and alone: every other setting and the objects in full need --all."""
    assert run("plan", job_file, "--set", "profile=appwrapper", "--set", "nodes=2", "--set", "recovery.max_restarts=3") == 0

    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.startswith("  ") and line.strip()}
    assert lines[3] == "Settings given in the file, and settings that differ from the defaults"
    assert rows["nodes"] == "2 default: 1"
    assert rows["recovery.max_restarts"] == "3 same as the default"
    assert rows["recovery.node_replacements"] == "0 from profile appwrapper"
    assert "health.node_lease" not in rows
    assert not any(line.startswith("fault_tolerance:") or "command" in line for line in lines)
    assert lines[-1] == "All other settings have their default values; --all shows the complete job and all objects."
