"""Arguments of DLRover's document as flags of a run by hand, and what a node makes of `auto_config`."""

from __future__ import annotations

import pytest

from rallypoint.agent.accelerators import accelerator
from rallypoint.agent.command_line import RunParser
from rallypoint.agent.commands import configured
from rallypoint.agent.errors import UsageError
from rallypoint.agent.flags import add_run_flags
from rallypoint.agent.options import RunOptions, read_options
from rallypoint.job.arguments import ARGUMENTS
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.pre_check import PreCheckOp
from rallypoint.wire.sections import replaced, value_of

OF_RUN = [pytest.param(name, id=name) for name, argument in ARGUMENTS.items() if argument.of_run]
PLAN = Plan(name="j", role="r", min_nodes=1, max_nodes=1, entry=Entry.MODULE, entrypoint="x", nproc_per_node=2)


def parse(*words: str, **environ: str) -> RunOptions:
    parser = RunParser()
    add_run_flags(parser, environ)
    return read_options(parser.parse_args([*words, "train.py"]), environ)


@pytest.mark.parametrize("name", OF_RUN)
def test_an_argument_is_a_flag_in_both_spellings(name: str) -> None:
    """Those of the master that make sense without one, and all of training."""
    parser = RunParser()
    add_run_flags(parser, {})
    flags = {spelled for action in parser._actions for spelled in action.option_strings}

    assert {f"--{name}", f"--{name.replace('_', '-')}"} <= flags


@pytest.mark.argument("pre_check_ops")
def test_operators_are_a_literal() -> None:
    """False bypasses; the one that finds nothing is none."""
    text = '[("my.checks", "Disk", True), ("my.checks", "Net", False)]'
    nothing = '[("dlrover.python.master.diagnosis.precheck_operator", "NoPreCheckOperator", True)]'

    assert value_of(parse("--pre-check-ops", text).plan, "pre_check_ops") == (
        PreCheckOp(module="my.checks", name="Disk"),
        PreCheckOp(module="my.checks", name="Net", enabled=False),
    )
    assert value_of(parse("--pre_check_ops", nothing).plan, "pre_check_ops") == ()


def test_what_a_run_can_do_reaches_its_plan() -> None:
    """By the names that dlrover-run has for it."""
    flags = ("--service-type", "grpc", "--xpu-type", "ascend", "--training-port", "50000")
    plan = parse(*flags).plan

    assert (plan.rendezvous.service_type, plan.devices.xpu_type, plan.devices.training_port) == ("grpc", "ascend", 50000)


def test_what_a_run_cannot_do_is_told() -> None:
    """A command line that worked elsewhere works here."""
    (note,) = parse("--relaunch-on-worker-failure", "2").notes

    assert note.startswith("--relaunch-on-worker-failure 2: ignored: this command cannot replace nodes")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("--training-port", "0"), "--training-port 0: not allowed; expected a port", id="no port"),
        pytest.param(
            ("--relaunch-on-worker-failure", "0"),
            "-failure 0: not allowed; expected a number of relaunches, 1 or more",
            id="no replacement",
        ),
        pytest.param(("--service-type", "soap"), "--service-type soap: not allowed; expected grpc, http", id="no service"),
        pytest.param(("--xpu-type", "amd"), "--xpu-type amd: not allowed; expected nvidia, ascend", id="no devices"),
        pytest.param(("--pre-check-ops", "os.abort()"), "--pre-check-ops os.abort(): not allowed", id="no literal"),
        pytest.param(
            ("--pre-check-ops", "[('a', 'b')]"),
            "('a', 'b') is not allowed; expected a list",
            id="no flag in it",
        ),
    ],
)
def test_anything_else_is_an_error(words: tuple[str, ...], said: str) -> None:
    """It names the flag, the value and what is allowed."""
    with pytest.raises(UsageError) as caught:
        parse(*words)

    assert said in str(caught.value)


def test_the_environment_says_it_by_either_name() -> None:
    """Torchrun's and ours; the flag wins over both."""
    assert parse(PET_MAX_RESTARTS="5").plan.budgets.max_restarts == 5
    assert parse(RALLYPOINT_MAX_RESTARTS="6").plan.budgets.max_restarts == 6
    assert parse("--max-restarts", "7", RALLYPOINT_MAX_RESTARTS="6").plan.budgets.max_restarts == 7
    assert value_of(parse(RALLYPOINT_SAVE_AT_BREAKPOINT="true").plan, "save_at_breakpoint") is True


def test_two_names_that_disagree_are_an_error() -> None:
    """Both are named."""
    with pytest.raises(UsageError) as caught:
        parse(PET_LOG_DIR="/a", RALLYPOINT_LOG_DIR="/b")

    assert "PET_LOG_DIR '/a' and RALLYPOINT_LOG_DIR '/b': conflicting values of one flag" in str(caught.value)


@pytest.mark.argument("auto_config")
def test_a_node_has_as_many_workers_as_devices() -> None:
    """Where it has any; what it was given otherwise."""
    wished = replaced(PLAN, auto_config=True)

    assert configured(wished, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}).nproc_per_node == 4
    assert configured(wished, {"CUDA_VISIBLE_DEVICES": ""}).nproc_per_node == 2
    npus = replaced(wished, accelerator="ascend-npu")
    assert configured(npus, {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2"}).nproc_per_node == 3
    assert configured(PLAN, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}).nproc_per_node == 2


@pytest.mark.argument("accelerator")
def test_devices_are_those_that_are_named() -> None:
    """They are counted, and each worker that shall see its own alone does, by the variable of its kind."""
    plan = parse("--accelerator", "ascend-npu", "--nproc-per-node", "gpu", ASCEND_RT_VISIBLE_DEVICES="0,1,2").plan

    assert (plan.devices.accelerator, plan.nproc_per_node) == ("ascend-npu", 3)
    assert accelerator(plan.devices.accelerator).backend == "hccl"
    assert accelerator(parse().plan.devices.accelerator).backend == "nccl"


@pytest.mark.argument("auto_config")
def test_a_run_counts_nodes_and_workers() -> None:
    """Nodes by NODE_NUM, which its pods have in DLRover."""
    plan = parse("--auto-config", "--rdzv-endpoint", "h:1", NODE_NUM="3", CUDA_VISIBLE_DEVICES="0,1").plan

    assert (plan.min_nodes, plan.max_nodes, plan.nproc_per_node) == (3, 3, 2)
