"""What a worker is started with."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.workers.worker_env import Place, round_env, worker_argv, worker_env
from rallypoint.training import startup
from rallypoint.training.context import own_slot, read_job
from rallypoint.wire import env
from rallypoint.wire.endpoint import split_address
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import Assignment
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.progress import life_offset
from rallypoint.wire.python import run_module
from rallypoint.wire.sections import build

ASSIGNMENT = Assignment(
    fence=Fence(attempt=2, term=3, round=4),
    node=1,
    group_rank=1,
    group_world_size=2,
    first_rank=2,
    world_size=4,
    store="10.0.0.7:4711",
    restart_count=1,
    max_restarts=5,
    digest="d",
)
PLACE = Place(
    assignment=ASSIGNMENT,
    local_rank=1,
    error_file=Path("/logs/e.json"),
    progress_file=Path("/run/p.bin"),
    stack_file=Path("/run/s.txt"),
    result_file=Path("/run/result-4.json"),
)


def plan(**more: object) -> Plan:
    fields: dict[str, object] = {
        "name": "digits",
        "role": "trainer",
        "min_nodes": 1,
        "max_nodes": 2,
        "nproc_per_node": 2,
        "entry": Entry.SCRIPT,
        "entrypoint": "train.py",
        "args": ("--lr", "0.1"),
    }
    return build(Plan, **{**fields, **more})


def test_a_worker_gets_torchruns_environment_and_ours() -> None:
    """Every variable of torchrun with the meaning it has there, and the fence the worker belongs to."""
    expected = {
        "LOCAL_RANK": "1",
        "RANK": "3",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "digits",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/logs/e.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GLOO_ENABLE_STORE_V2_API": "1",
        "OMP_NUM_THREADS": "1",
        env.JOB_NAME: "digits",
        env.ATTEMPT: "2",
        env.TERM: "3",
        env.ROUND: "4",
        env.LOCAL_RANK: "1",
        env.KEPT: "0",
        env.PROGRESS_FILE: "/run/p.bin",
        env.LIFE_OFFSET: str(life_offset(2, 1)),
        env.STACK_FILE: "/run/s.txt",
        "PYTHONPATH": str(Path(startup.__file__).parent),
    }

    assert worker_env({}, plan(), PLACE) == expected


def test_a_worker_that_lives_on_is_told_what_the_round_says_and_no_more() -> None:
    """What a fresh worker beside it has of the round, without what it was started with; and how many live on."""
    place = dataclasses.replace(PLACE, line=Path("/run/l.sock"), assignment=dataclasses.replace(PLACE.assignment, kept=3))
    fresh = worker_env({"HOME": "/h"}, plan(env={"A": "b"}), place)
    told = round_env(plan(env={"A": "b"}), place)
    assert (told[env.KEPT], told[env.LINE]) == ("3", "/run/l.sock")
    assert told.items() <= fresh.items()
    assert not {"HOME", "A", "PYTHONPATH", "OMP_NUM_THREADS"} & set(told)


def test_the_start_up_module_comes_before_what_is_there_already() -> None:
    """It runs whatever it hides, and a path of the agent or of the job still leads to its modules."""
    given = worker_env({"PYTHONPATH": "/a"}, plan(env={"PYTHONPATH": "/b:/c"}), PLACE)["PYTHONPATH"]

    assert given.split(":")[1:] == ["/b", "/c"]


@pytest.mark.parametrize(
    ("base", "more", "name", "expected"),
    [
        pytest.param({}, {"nproc_per_node": 1}, "OMP_NUM_THREADS", None, id="one worker keeps all threads"),
        pytest.param({"OMP_NUM_THREADS": "4"}, {}, "OMP_NUM_THREADS", "4", id="threads set outside stay"),
        pytest.param({}, {"env": {"OMP_NUM_THREADS": "8"}}, "OMP_NUM_THREADS", "8", id="threads set by the job stay"),
        pytest.param({"GLOO_ENABLE_STORE_V2_API": "0"}, {}, "GLOO_ENABLE_STORE_V2_API", "0", id="gloo stays"),
        pytest.param({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, {}, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", id="nccl stays"),
        pytest.param({"A": "1"}, {"env": {"A": "2"}}, "A", "2", id="the job's value wins over the agent's"),
        pytest.param({"RANK": "9"}, {"env": {"RANK": "8"}}, "RANK", "3", id="the round's value wins over both"),
        pytest.param({env.SECRET: "s"}, {}, env.SECRET, None, id="the secret stays with the agent"),
        pytest.param({env.JOB_MARK: "m"}, {}, env.JOB_MARK, "m", id="the job's mark is handed on"),
        pytest.param({}, {"checkpoint_dir": "/c"}, env.CHECKPOINT_DIR, "/c", id="checkpoints"),
    ],
)
def test_who_decides_a_variable(base: dict[str, str], more: dict[str, object], name: str, expected: str | None) -> None:
    """The round before the job, the job before the agent's own environment."""
    assert worker_env(base, plan(**more), PLACE).get(name) == expected


def test_only_rank_0_is_told_where_to_leave_the_result() -> None:
    """What another rank returns is dropped."""
    first = dataclasses.replace(PLACE, assignment=dataclasses.replace(ASSIGNMENT, first_rank=0))

    assert worker_env({}, plan(), dataclasses.replace(first, local_rank=0))[env.RESULT_FILE] == "/run/result-4.json"
    assert env.RESULT_FILE not in worker_env({}, plan(), first)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, "1", id="no restriction"),
        pytest.param("4, 7,9", "7", id="among those that are visible"),
        pytest.param("GPU-a,GPU-b", "GPU-b", id="by UUID"),
    ],
)
def test_a_virtual_local_rank_sees_one_gpu(visible: str | None, expected: str) -> None:
    """It is 0 in every worker, as torchrun has it; our own code still knows which worker it is."""
    base = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = worker_env(base, plan(virtual_local_rank=True), PLACE)
    job = read_job(found)

    assert (found["LOCAL_RANK"], found["CUDA_VISIBLE_DEVICES"], found["RANK"]) == ("0", expected, "3")
    assert job is not None
    assert (own_slot(found), job.local_rank) == (1, 1)


def test_a_virtual_local_rank_without_a_gpu_is_an_error() -> None:
    """Two workers on one would be trained wrong in silence."""
    with pytest.raises(ConfigError, match="local rank 1 has no GPU in CUDA_VISIBLE_DEVICES=4"):
        worker_env({"CUDA_VISIBLE_DEVICES": "4"}, plan(virtual_local_rank=True), PLACE)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, [sys.executable, "-u", "train.py", "--lr", "0.1"], id="script"),
        pytest.param({"entry": Entry.MODULE}, [sys.executable, "-u", "-m", "train.py", "--lr", "0.1"], id="module"),
        pytest.param(
            {"entry": Entry.MODULE, "entrypoint": "rallypoint.training.call", "args": ("m:f",)},
            [*run_module("rallypoint.training.call", "m:f", python=(sys.executable, "-u"))],
            id="function: a module of ours",
        ),
        pytest.param({"entry": Entry.COMMAND, "args": ("${local_rank}",)}, ["train.py", "1"], id="command with a macro"),
    ],
)
def test_the_command_line_follows_the_entry(more: dict[str, object], expected: list[str]) -> None:
    """Scripts and modules run unbuffered under the agent's Python; a command is what it is."""
    assert worker_argv(plan(**more), 1, {}) == expected


def test_another_python_may_be_named() -> None:
    """PYTHON_EXEC works as it does under torchrun."""
    assert worker_argv(plan(), 0, {"PYTHON_EXEC": "/opt/python"})[0] == "/opt/python"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        pytest.param("host:1", ("host", 1), id="name"),
        pytest.param("[fe80::1]:2", ("fe80::1", 2), id="IPv6"),
    ],
)
def test_an_address_is_split(address: str, expected: tuple[str, int]) -> None:
    """The brackets of IPv6 are taken off."""
    assert split_address(address) == expected
