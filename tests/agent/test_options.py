"""torchrun's command line, as we read it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from rallypoint.agent.devices import count_cpus, count_gpus
from rallypoint.agent.flags import REFUSED, add_run_flags
from rallypoint.agent.options import Meeting, RunOptions, parse_nnodes, read_options
from rallypoint.agent.workers.logs import Streams
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.plan import Entry

HERE = Meeting(host="h", port=1)


def read(line: str, **env: str) -> RunOptions:
    parser = argparse.ArgumentParser()
    add_run_flags(parser, env)
    return read_options(parser.parse_args(line.split()), env)


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        pytest.param("t.py", "max_restarts", 0, id="no restart by default"),
        pytest.param("t.py", "stop_grace", 30.0, id="torchrun's grace by default"),
        pytest.param("--shutdown-timeout 2 t.py", "stop_grace", 2.0, id="grace"),
        pytest.param("--nnodes 2:4 --rdzv-endpoint h:1 t.py", "max_nodes", 4, id="elastic"),
        pytest.param("--nnodes=3 --rdzv-endpoint h:1 t.py", "min_nodes", 3, id="fixed"),
        pytest.param("--nproc_per_node 4 t.py", "nproc_per_node", 4, id="spelled with underscores"),
        pytest.param("--nproc-per-node cpu t.py", "nproc_per_node", count_cpus(), id="one per CPU"),
        pytest.param("t.py --nnodes 5", "args", ("--nnodes", "5"), id="the script's own flags are its own"),
        pytest.param("-m pkg.train", "entry", Entry.MODULE, id="module"),
        pytest.param("--no-python bash", "entry", Entry.COMMAND, id="program"),
        pytest.param("--rdzv-conf join_timeout=5,last_call_timeout=2 t.py", "last_call", 2.0, id="last call"),
        pytest.param("--rdzv-conf timeout=5 t.py", "join_timeout", 5.0, id="torchrun's older name"),
        pytest.param("--rdzv-id run7 t.py", "name", "run7", id="id"),
        pytest.param("--start-method fork --monitor-interval 5 --event-log-handler null t.py", "name", "none", id="no effect"),
    ],
)
def test_a_flag_reaches_the_plan(line: str, field: str, expected: object) -> None:
    """Each flag has its effect."""
    assert getattr(read(line).plan, field) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("t.py", None, id="one node by itself"),
        pytest.param("--standalone --rdzv-endpoint h:1 t.py", None, id="standalone ignores the endpoint"),
        pytest.param("--rdzv-backend c10d --rdzv-endpoint h:1 t.py", HERE, id="c10d"),
        pytest.param("--rdzv-backend c10d --rdzv-endpoint h t.py", Meeting(host="h", port=29400), id="torchrun's port"),
        pytest.param("--rdzv-backend c10d --rdzv-endpoint [::1]:7 t.py", Meeting(host="::1", port=7), id="IPv6"),
        pytest.param(
            "--nnodes 2 --node-rank 1 --master-addr h t.py", Meeting(host="h", port=29500, may_host=False), id="static, node 1"
        ),
        pytest.param("--nnodes 2 --master-addr h --master-port 1 t.py", HERE, id="static, node 0 hosts"),
    ],
)
def test_where_the_agents_meet(line: str, expected: Meeting | None) -> None:
    """The endpoint, or torchrun's older way of naming it."""
    assert read(line).meeting == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(
            "--rdzv-backend etcd t.py", r"--rdzv-backend etcd: not allowed; expected c10d, rallypoint, static", id="backend"
        ),
        pytest.param("--event-log-handler console t.py", r"--event-log-handler console: not allowed", id="events"),
        pytest.param("--nnodes 3:2 t.py", r"--nnodes 3:2: not allowed; expected N or MIN:MAX", id="bounds"),
        pytest.param(
            "--nproc-per-node many t.py", r"--nproc-per-node many: .* a number from 1, cpu, gpu or auto", id="workers"
        ),
        pytest.param("--nproc-per-node 0 t.py", r"--nproc-per-node 0", id="no worker"),
        pytest.param("--max-restarts -1 t.py", r"--max-restarts -1: not allowed; expected 0 or more", id="restarts"),
        pytest.param(
            "--rdzv-conf wait=1 t.py", r"--rdzv-conf wait: not allowed; expected one of fence_timeout, join_", id="key"
        ),
        pytest.param("--rdzv-conf timeout=soon t.py", r"--rdzv-conf timeout 'soon'", id="seconds"),
        pytest.param("--rdzv-backend c10d --nnodes 2 t.py", r"--rdzv-endpoint: is needed for --nnodes 2", id="no endpoint"),
        pytest.param("--rdzv-endpoint h:x t.py", r"--rdzv-endpoint h:x: not allowed; expected HOST:PORT", id="port"),
        pytest.param("--standalone --nnodes 2 t.py", r"--standalone with --nnodes 2", id="standalone of two"),
        pytest.param("--nnodes 2 --node-rank 2 t.py", r"--node-rank 2: not allowed; expected 0 to 1", id="slot"),
        pytest.param("--tee 4 t.py", r"--tee 4: not allowed; expected 0 none", id="stream"),
        pytest.param("-r 0:9 t.py", r"--redirects 0:9", id="stream of a rank"),
        pytest.param("--local-ranks-filter a t.py", r"--local-ranks-filter a", id="filter"),
        pytest.param("--no-python -m t.py", r"--no-python and --module", id="two ways to start"),
    ],
)
def test_a_wrong_flag_is_named(line: str, message: str) -> None:
    """The flag, the value and what is allowed."""
    with pytest.raises(RallypointError, match=message):
        read(line)


@pytest.mark.parametrize("flag", REFUSED)
def test_a_flag_without_effect_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is accepted and then ignored; the reason is told."""
    with pytest.raises(SystemExit) as ended:
        read(f"{flag} x t.py")

    assert ended.value.code == 2
    assert REFUSED[flag] in capsys.readouterr().err


def test_streams_and_ranks_are_read() -> None:
    """By rank or for all."""
    options = read("-r 0:1,1:2 --tee 3 --local-ranks-filter 0,1 t.py")

    assert options.streams == Streams(redirects_of={0: 1, 1: 2}, tee=3, console=frozenset({0, 1}))


def test_the_environment_gives_defaults() -> None:
    """PET_ variables as in torchrun; a flag wins over them."""
    options = read("--max-restarts 1 t.py", PET_NNODES="1:2", PET_RDZV_ENDPOINT="h:1", PET_MAX_RESTARTS="7", PET_MODULE="1")

    assert (options.plan.max_nodes, options.plan.max_restarts, options.plan.entry) == (2, 1, Entry.MODULE)


def test_run_path_runs_the_script_by_runpy() -> None:
    """In the interpreter that runs one line of ours, with the script's own arguments."""
    plan = read("--run-path /a/t.py --lr 1").plan

    assert plan.entry is Entry.COMMAND
    assert plan.args[-3:] == ("/a/t.py", "--lr", "1")


@pytest.mark.parametrize("text", ["0", "1:0", "a", "1:2:3", "", ":"])
def test_wrong_numbers_of_nodes(text: str) -> None:
    """Every way to write it wrong is an error, none a default."""
    with pytest.raises(RallypointError):
        parse_nnodes(text)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("0,1", 2, id="two"),
        pytest.param("", 0, id="none"),
        pytest.param("-1", 0, id="hidden"),
        pytest.param("GPU-a,GPU-b,-1,GPU-c", 2, id="the list ends at -1"),
    ],
)
def test_visible_gpus_are_counted(visible: str, expected: int) -> None:
    """CUDA_VISIBLE_DEVICES decides where it is set."""
    assert count_gpus({"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_gpus_are_counted_by_the_drivers_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no nvidia-smi."""
    monkeypatch.setenv("PATH", "")
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()

    assert (count_gpus({}, tmp_path), count_gpus({}, tmp_path / "absent")) == (2, 0)
