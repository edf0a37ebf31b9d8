"""The script of a pod, run by a real shell with stand-ins for torchrun and for our agent."""

from __future__ import annotations

import os
import subprocess

import pytest

from rallypoint.compat.pytorchjob_generator.script import script
from tests.compat.pytorchjob_generator.samples import BARE, settings

OPERATOR = {"WORLD_SIZE": "4", "RANK": "2", "MASTER_ADDR": "my-job-master-0", "MASTER_PORT": "23456"}


@pytest.fixture
def shell(tmp_path):
    """Run the script of a pod; returns the finished process and the words that were given to torchrun or to the agent."""
    programs = tmp_path / "bin"
    programs.mkdir()
    ran = tmp_path / "ran"
    for name in ("torchrun", "rallypoint-agent"):
        stand_in = programs / name
        stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" >> {ran}\nexit 7\n')
        stand_in.chmod(0o755)

    def run(env=OPERATOR, **changes):
        ran.unlink(missing_ok=True)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        text = script(settings(**{"setupCommands": [], **changes}))
        done = subprocess.run(
            ["sh", "-c", text], env={"PATH": path, **env}, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done, ran.read_text().splitlines() if ran.exists() else []

    return run


def test_torchrun_is_told_what_the_operator_has_set(shell):
    """One process for each GPU; the exit code is torchrun's."""
    done, words = shell(mainProgram="train.py --lr 0.1")

    assert words == [
        *("torchrun", "--nnodes=4", "--node_rank=2", "--nproc_per_node=8", "--rdzv_id=101"),
        *("--rdzv_endpoint=my-job-master-0:23456", "train.py", "--lr", "0.1"),
    ]
    assert done.returncode == 7
    assert "My global rank is 2 / 4" in done.stdout


def test_a_job_without_gpus_leaves_the_number_of_processes_to_torchrun(shell):
    """So does the chart."""
    _, words = shell(numGpusPerPod=0)

    assert [word for word in words if word.startswith("--nproc")] == []


def test_without_a_program_only_the_setup_commands_run(shell):
    """Then their last exit code is the pod's."""
    done, words = shell(mainProgram=None, setupCommands=["echo first", "exit 3"])

    assert (done.returncode, words) == (3, [])
    assert done.stdout.endswith("first\n")


def test_sakkara_has_the_last_word_about_the_rank(shell):
    """The place that it gave the pod is the rank there."""
    _, words = shell(env={**OPERATOR, "SAKKARA_RANK": "3"}, schedulerName="sakkara")

    assert "--node_rank=3" in words


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("if true; then\n  cd sub\nfi", id="a conditional"),
        pytest.param("cat > sub/x <<EOF\n  two\nlines\nEOF\ncd sub", id="a here-document"),
        pytest.param("for d in sub; do\n  cd $d\ndone\n", id="a loop with a line break at its end"),
    ],
)
def test_a_setup_command_may_have_several_lines(shell, tmp_path, command):
    """The chart writes YAML that is broken; here each line reaches the shell as it was written."""
    (tmp_path / "sub").mkdir()

    done, words = shell(setupCommands=[command, "pwd"], mainProgram="train.py")

    assert f"{tmp_path}/sub\n" in done.stdout
    assert words[-1] == "train.py"


def test_a_failed_setup_command_does_not_stop_a_job_of_the_chart(shell):
    """Equal in meaning: its script goes on."""
    _, words = shell(setupCommands=["false"])

    assert words[0] == "torchrun"


# --- Elastic ---------------------------------------------------------------------------------------------------------------


def test_an_elastic_job_runs_our_agent(shell):
    """MIN to MAX pods that meet at the master; the exit code is the agent's."""
    done, words = shell(elastic=True, minPods=2, mainProgram="train.py --lr 0.1")

    assert words == [
        *("rallypoint-agent", "run", "--nnodes=2:4", "--nproc_per_node=8", "--max_restarts=3", "--rdzv_backend=c10d"),
        *("--rdzv_id=my-job", "--rdzv_endpoint=my-job-master-0:23456", "train.py", "--lr", "0.1"),
    ]
    assert done.returncode == 7


def test_the_agent_reads_those_flags():
    """They are torchrun's, in the agent's own parser."""
    import shlex

    from rallypoint.agent.main import build_parser
    from rallypoint.agent.options import read_options

    line = script(settings(elastic=True, minPods=2, maxRestarts=5)).splitlines()[-1]
    words = shlex.split(line.replace("${MASTER_ADDR}", "master").replace("${MASTER_PORT}", "23456"))[2:]

    options = read_options(build_parser().parse_args(words), {})

    assert (options.plan.min_nodes, options.plan.max_nodes, options.plan.nproc_per_node) == (2, 4, 8)
    assert (options.plan.budgets.max_restarts, options.plan.entrypoint) == (5, "helloworld.py")
    assert options.meeting is not None
    assert (options.meeting.host, options.meeting.port, options.meeting.may_host) == ("master", 23456, True)


@pytest.mark.parametrize(
    ("pod", "rank"),
    [
        pytest.param("my-job-master-0", "0", id="the master"),
        pytest.param("my-job-worker-0", "1", id="the first worker"),
        pytest.param("my-job-worker-12", "13", id="a later worker"),
    ],
)
def test_without_an_operators_variables_they_are_exported_before_setup(shell, pod, rank):
    """As the chart documents them: setup commands, and what they start, can refer to them."""
    told = "sh -c 'echo told $WORLD_SIZE $RANK $MASTER_ADDR $MASTER_PORT'"

    done, words = shell(env={"RALLYPOINT_POD_NAME": pod}, elastic=True, setupCommands=[told])

    assert f"told 4 {rank} my-job-master-0 23456\n" in done.stdout
    assert "--rdzv_endpoint=my-job-master-0:23456" in words


def test_what_an_operator_has_set_is_kept(shell):
    """It knows better."""
    env = {"RALLYPOINT_POD_NAME": "my-job-worker-0", "WORLD_SIZE": "9", "RANK": "8", "MASTER_ADDR": "m", "MASTER_PORT": "1"}

    done, words = shell(env=env, elastic=True)

    assert "My global rank is 8 / 9" in done.stdout
    assert "--rdzv_endpoint=m:1" in words


def test_an_elastic_job_stops_at_the_first_failed_setup_command(shell):
    """Nothing trains on data that is not there; the exit code is the command's."""
    done, words = shell(elastic=True, setupCommands=["sh -c 'exit 5'", "echo never"])

    assert (done.returncode, words) == (5, [])
    assert "never" not in done.stdout


def test_the_least_of_an_elastic_job_is_one_pod():
    """Unless it is given; and without GPUs there is one process on each."""
    line = script(settings(BARE, elastic=True, mainProgram="a.py", numPods=3)).splitlines()[-1]

    assert "--nnodes=1:3 --nproc_per_node=1 " in line
