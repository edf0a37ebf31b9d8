"""torchrun's own parser beside ours: every flag, its values, its variables, its unique beginnings."""

from __future__ import annotations

import argparse
import functools
import itertools
from pathlib import Path

import pytest
import torch
from torch.distributed.run import get_args_parser

from rallypoint.agent.flags import CHOICES, OURS, REFUSED, RunParser, add_run_flags
from tools.run_flags import PAGE, PINNED, page


def parser_with(env: dict[str, str]) -> RunParser:
    parser = RunParser()
    add_run_flags(parser, env)
    return parser


@functools.cache
def ours() -> RunParser:
    return parser_with({})


@functools.cache
def theirs() -> argparse.ArgumentParser:
    return get_args_parser()


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    found = {name: action for action in parser._actions for name in action.option_strings}
    return {name: action for name, action in found.items() if action.dest != "help"}


def refused(action: argparse.Action) -> bool:
    return any(name in REFUSED for name in action.option_strings)


def takes_a_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def names() -> list[str]:
    return sorted(options(theirs()))


@pytest.mark.parametrize("name", names())
def test_every_flag_of_torchrun_is_known(name: str) -> None:
    """With the same name for its value, as many words, and the same choices."""
    mine, its = options(ours())[name], options(theirs())[name]

    assert (mine.dest, takes_a_value(mine)) == (its.dest, takes_a_value(its))
    if its.choices is not None:
        assert CHOICES[its.option_strings[0]] == tuple(its.choices)


def test_the_script_and_its_arguments_come_last() -> None:
    """As in torchrun: what stands behind the script is the script's."""
    line = ["--nproc-per-node", "2", "train.py", "--nnodes", "3", "--", "-m"]
    expected = theirs().parse_args(line)
    found = ours().parse_args(line)

    assert (found.training_script, found.training_script_args) == ("train.py", expected.training_script_args)


def beginnings() -> dict[str, list[str]]:
    """Return every beginning of torchrun's flags that means one of them, by which."""
    known, found = options(theirs()), dict[str, list[str]]()
    for name in (name for name in sorted(known) if name.startswith("--")):
        for length in range(3, len(name)):
            meant = {action.dest for other, action in known.items() if other.startswith(name[:length])}
            if len(meant) == 1 and name[:length] not in known:
                found.setdefault(meant.pop(), []).append(name[:length])
    return found


@pytest.mark.parametrize(("dest", "spelled"), list(beginnings().items()))
def test_a_unique_beginning_means_the_same(dest: str, spelled: list[str]) -> None:
    """Also where a flag of ours begins alike."""
    meant = {text: {action.dest for action, *_ in ours()._get_option_tuples(text)} for text in spelled}

    assert meant == {text: {dest} for text in spelled}


VALUES = {"int": "7", "float": "2.5", "str": "text", "comma_separated_list": "a,b"}


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("--") and "_" not in name])
def test_every_variable_of_torchrun_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PET_ and the name, for each flag that has one there."""
    action = options(theirs())[name]
    if refused(options(ours())[name]) or type(action).__name__ not in ("env", "check_env"):
        pytest.skip("it has no variable, or is refused")
    kind = getattr(action.type, "__name__", "str")
    text = VALUES[kind] if takes_a_value(action) else "1"
    variable = f"PET_{action.dest.upper()}"
    monkeypatch.setenv(variable, text)

    expected = vars(get_args_parser().parse_args(["train.py"]))[action.dest]

    assert vars(parser_with({variable: text}).parse_args(["train.py"]))[action.dest] == expected


def test_flags_of_ours_are_not_torchruns() -> None:
    """The list of those that make way."""
    known = {action.dest for action in options(ours()).values()}
    its = {action.dest for action in options(theirs()).values()}

    assert known - its == OURS
    assert its <= known


def test_dlrover_runs_flags_are_known_in_both_spellings() -> None:
    """Those of its documentation: with a value, or a switch."""
    valued = ("precheck", "node_unit", "accelerator", "relaunch_on_worker_failure", "training_port", "max_restarts", "nnodes")
    switches = ("auto_config", "auto_tunning", "exclude_straggler", "numa_affinity", "network-check", "comm-perf-test")
    known = options(ours())

    for name, value in itertools.chain(((name, True) for name in valued), ((name, False) for name in switches)):
        for spelled in (f"--{name.replace('-', '_')}", f"--{name.replace('_', '-')}"):
            assert takes_a_value(known[spelled]) is value


@pytest.mark.skipif(not torch.__version__.startswith(f"{PINNED}."), reason="the table is about the pinned torch")
def test_the_table_of_flags_is_current() -> None:
    """`make docs` writes it."""
    assert Path(PAGE).read_text(encoding="utf-8") == page()
