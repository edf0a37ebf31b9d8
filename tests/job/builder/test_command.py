"""Command lines of launchers: each flag has a field, has no effect, or is refused."""

from __future__ import annotations

import argparse

import pytest

from rallypoint.agent.command_line import RunParser
from rallypoint.agent.flags import REFUSED, add_run_flags
from rallypoint.job import load_job
from rallypoint.job.builder import JobBuilder
from rallypoint.job.builder import command as commands
from rallypoint.job.builder.command import SWITCHES
from tests.job.builder.test_builder import problems


def document(text):
    return JobBuilder().by_dlrover_run_cmd(text).build().to_document()


def test_every_flag_of_the_launcher_is_known():
    """The tables here and the parser of `rallypoint-agent run` have the same flags and switches."""
    parser = RunParser()
    add_run_flags(parser, {})
    actions = {action.dest: action for action in parser._actions if action.option_strings and action.dest != "help"}
    refused = {name[2:].replace("-", "_") for name in REFUSED}

    flags = {name for name, action in actions.items() if action.help is not argparse.SUPPRESS} - refused

    assert flags - set(commands._known()) == set()
    assert {name for name in flags if actions[name].nargs == 0} == SWITCHES & flags


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        pytest.param("torchrun train.py", {"nodes": 1, "nproc_per_node": 1}, id="defaults"),
        pytest.param("torchrun --nnodes 1:4 train.py", {"nodes": "1:4"}, id="a range"),
        pytest.param("torchrun --nproc-per-node gpu train.py", {"auto_config": True}, id="one per device"),
        pytest.param("torchrun --nproc_per_node=2 train.py", {"nproc_per_node": 2}, id="underscores"),
        pytest.param("torchrun -m pkg.train 'a b'", {"entrypoint": "-m pkg.train", "args": ["a b"]}, id="a module"),
        pytest.param("torchrun --no-python ./run.sh x", {"entrypoint": ["./run.sh", "x"]}, id="a program"),
        pytest.param("/usr/bin/torchrun train.py", {"entrypoint": "train.py"}, id="a path"),
        pytest.param(
            "python -m torch.distributed.run train.py --nnodes 3", {"args": ["--nnodes", "3"]}, id="a module of torch"
        ),
        pytest.param("rallypoint-agent run --max-restarts 0 x.py", {"recovery": {"max_restarts": 0}}, id="our own launcher"),
        pytest.param("dlrover-run --precheck=1 x.py", {"health": {"precheck": 1}}, id="a check"),
        pytest.param("dlrover-run --node_check x.py", {"health": {"network_check": True}}, id="the old name of a check"),
        pytest.param("torchrun -r 3 -t1 x.py", {"logs": {"redirects": "both", "tee": "stdout"}}, id="short flags"),
        pytest.param("torchrun --log-dir logs x.py", {"logs": {"dir": "logs"}}, id="logs"),
        pytest.param("torchrun --nnode 2 x.py", {"nodes": 2}, id="the beginning of a name"),
        pytest.param("torchrun --role actor x.py", {"roles": None}, id="a role"),
    ],
)
def test_flags_land_in_the_document(text, fields):
    """And the document is valid."""
    found = document(text)

    load_job(found)
    if "roles" in fields:
        assert list(found["roles"]) == ["actor"]
    else:
        assert {key: found[key] for key in fields} == fields


def test_nothing_else_is_set():
    """Device type, config and environment stay those of the builder; the machines follow the line where they are not set."""
    line = "torchrun --nnodes=2 --nproc_per_node=4 x.py"
    found = JobBuilder().config({"a": 1}).device_type("CPU").by_dlrover_run_cmd(line).build().to_document()

    assert found["cluster"] == {"nodes": 2, "devices_per_node": 4, "device_type": "cpu"}
    assert found["config"] == {"a": 1}
    assert "env" not in found


def test_where_nodes_meet_has_no_effect():
    """A warning names both flags, and the job is the same as without them."""
    with pytest.warns(UserWarning, match="--rdzv-backend, --rdzv-endpoint: no effect"):
        found = document("torchrun --rdzv-backend c10d --rdzv-endpoint h:1 x.py")

    assert found == document("torchrun x.py")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "command"),
        ("unsupported-run --nnodes=1 train.py", "command"),
        ("torchrun 'x", "command"),
        ("torchrun --nnodes=2", "command"),
        ("torchrun --bogus=1 x.py", "command --bogus"),
        ("torchrun --nproc-per-node many x.py", "command --nproc-per-node"),
        ("torchrun --nnodes 4:1 x.py", "command --nnodes"),
        ("torchrun --virtual-local-rank x.py", "command --virtual-local-rank"),
        ("torchrun --tee 0:3 x.py", "command --tee"),
        ("torchrun x.py", "nothing"),
    ],
)
def test_wrong_lines_are_errors_and_never_end_the_process(text, path):
    """Each names its flag."""
    if path == "nothing":
        assert document(text)
    else:
        assert path in problems(lambda: JobBuilder().by_dlrover_run_cmd(text))


def test_a_skipped_check_wins():
    """`skip_node_check` takes back what a line asks for, in any order."""
    builder = JobBuilder().skip_node_check().by_dlrover_run_cmd("dlrover-run --node-check x.py")

    assert "health" not in builder.build().to_document()
