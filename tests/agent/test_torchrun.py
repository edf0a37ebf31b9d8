"""torchrun's own parser beside ours: every flag, its values, its variables, its unique beginnings."""

from __future__ import annotations

import argparse
import functools
import itertools
from pathlib import Path

import pytest
import torch
from torch.distributed.run import get_args_parser

from rallypoint.agent.command_line import RunParser
from rallypoint.agent.flags import CHOICES, OURS, REFUSED, add_run_flags
from rallypoint.agent.main import build_parser
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


def line_of(action: argparse.Action, name: str) -> list[str]:
    kind = getattr(action.type, "__name__", "str")
    choices = [str(choice) for choice in action.choices or ()]
    return [name, *([choices[0] if choices else VALUES[kind]] if takes_a_value(action) else []), "train.py", "--lr", "1"]


@pytest.mark.parametrize(("dest", "spelled"), list(beginnings().items()))
def test_a_unique_beginning_means_the_same(dest: str, spelled: list[str]) -> None:
    """Also where a flag of ours begins alike, and where both spellings of one flag do, as for `--nproc`."""
    action = options(theirs())["--" + dest.replace("_", "-")]
    if refused(options(ours())["--" + dest.replace("_", "-")]):
        pytest.skip("it is refused in full as well")
    whole = vars(theirs().parse_args(line_of(action, action.option_strings[-1])))

    for text in spelled:
        found = vars(ours().parse_args(line_of(action, text)))
        assert (text, found[dest], found["training_script_args"]) == (text, whole[dest], ["--lr", "1"])


def test_a_beginning_that_torchrun_refuses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Two flags begin so; both are named, in one sentence."""
    for parser in (theirs(), ours()):
        with pytest.raises(SystemExit):
            parser.parse_args(["--rdzv", "x", "train.py"])

    said = capsys.readouterr().err.splitlines()[-2:]
    assert said[0].endswith("ambiguous option: --rdzv could match --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf")
    assert said[1].startswith("try '")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(["-m", "pkg.train", "-m"], id="a module"),
        pytest.param(["-mr3", "pkg.train"], id="short flags together"),
        pytest.param(["-r=3", "-t", "0:1", "train.py"], id="a value behind an equals sign"),
        pytest.param(["--", "-odd.py", "--nnodes", "3"], id="a script that looks like a flag"),
        pytest.param(["--max-restarts", "7", "nnodes", "--", "x"], id="a script whose name is a flag's"),
        pytest.param(["--role", "", "train.py"], id="an empty value"),
        pytest.param(["--role", "-7", "train.py"], id="a value that is a negative number"),
        pytest.param(["--role", "-a b", "train.py"], id="a value with a space"),
        pytest.param(["--rdzv-conf=a=b", "-", "--help"], id="a script on standard input"),
    ],
)
def test_a_line_is_read_as_torchrun_reads_it(line: list[str]) -> None:
    """Every value, the script and its arguments."""
    expected = vars(theirs().parse_args(line))
    found = vars(ours().parse_args(line))

    differ = {"max_restarts", "monitor_interval", "start_method"}  # by default
    if "--max-restarts" in line:
        differ.discard("max_restarts")
    its = [arg for arg in expected["training_script_args"] if arg != "--"]  # some Pythons drop the first one
    assert [arg for arg in found["training_script_args"] if arg != "--"] == its
    same = expected.keys() - differ - {"training_script_args"}
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}


@pytest.mark.parametrize("line", [["--nproc-per-node"], ["--role", "--standalone", "train.py"], ["--role", "--", "train.py"]])
def test_a_flag_without_its_value_is_an_error(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As in torchrun: a flag is no value."""
    for parser in (theirs(), ours()):
        with pytest.raises(SystemExit):
            parser.parse_args(line)

        assert "expected one argument" in capsys.readouterr().err


def script_words() -> list[str]:
    """Return everything that is or begins one of our flags, with and without a value."""
    spelled = {name[:length] for name in options(ours()) for length in range(1, len(name) + 1)}
    return sorted({*spelled, *(f"{word}=3" for word in spelled), *(f"-{word}" for word in spelled)})


@pytest.mark.parametrize("front", [["--nproc-per-node", "2"], ["--nproc", "2", "-m"], ["--standalone", "--no-python"]])
def test_no_argument_of_the_script_is_ours(front: list[str]) -> None:
    """Whatever it looks like: every beginning of every flag, alone, with a value, and all of them in one line."""
    parser, words = build_parser(), script_words()
    assert len(words) > 500

    for rest in (*([word] for word in words), *([word, "3"] for word in words), words):
        found = parser.parse_args(["run", *front, "train.py", *rest])
        assert (found.training_script, found.training_script_args) == ("train.py", rest)


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
    switches = ("auto_config", "exclude_straggler", "numa_affinity", "network-check", "comm-perf-test")
    known = options(ours())

    for name, value in itertools.chain(((name, True) for name in valued), ((name, False) for name in switches)):
        for spelled in (f"--{name.replace('-', '_')}", f"--{name.replace('_', '-')}"):
            assert takes_a_value(known[spelled]) is value


@pytest.mark.skipif(not torch.__version__.startswith(f"{PINNED}."), reason="the table is about the pinned torch")
def test_the_table_of_flags_is_current() -> None:
    """`make docs` writes it."""
    assert Path(PAGE).read_text(encoding="utf-8") == page()
