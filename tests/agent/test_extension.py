"""A job's failover extension: what is loaded, what is refused, and what its answers mean."""

from __future__ import annotations

import enum
import sys
from pathlib import Path

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.node.adviser import extension_command
from rallypoint.agent.node.extension import load, read_answer, say
from rallypoint.agent.workers.facts import OomWatch
from rallypoint.training.failover import FailoverExtension
from rallypoint.wire import codec, env
from rallypoint.wire.failover import Failover, Failure
from rallypoint.wire.incident import Culprit
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.python import run_module
from rallypoint.wire.sections import build

FAILURE = Failure(
    job="digits",
    attempt=2,
    round=3,
    node=1,
    host="b",
    at=1700000000.5,
    workers=(Culprit(node=1, rank=3, local_rank=1, exit_code=7, error="ValueError: no"),),
)

MODULE = """
from rallypoint.training.failover import Failover, FailoverExtension

class Ours(FailoverExtension):
    def decide(self, failure):
        return Failover.NODE if failure.workers[0].exit_code == 7 else Failover.NORMAL

class Theirs:
    def get_user_failover_strategy(self, failure_info):
        assert (failure_info.node_rank, failure_info.timestamp, failure_info.extra_info) == (1, 1700000000, {})
        assert "ValueError: no" in failure_info.log_content
        return "ABORTION_FAILOVER"

class Lacking(FailoverExtension):
    pass

class Methodless:
    decide = 5

class Needy:
    def __init__(self, what):
        pass

number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_failover.py").write_text(MODULE)
    (tmp_path / "some_broken.py").write_text("import no_such_module_anywhere")
    (tmp_path / "some_exit.py").write_text("raise SystemExit('not today')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_failover", raising=False)
    return "some_failover"


def test_a_class_is_loaded_and_asked(module: str) -> None:
    """Ours by its base class, DLRover's by the name of its method; each is told what it expects."""
    assert say(load(f"{module}::Ours"), FAILURE, "x") == {"failover": "node", "note": ""}
    assert say(load(f"{module}::Theirs"), FAILURE, "x") == {"failover": "abort", "note": ""}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("no_such_package::X", "cannot import module no_such_package: ModuleNotFoundError", id="module"),
        pytest.param("some_broken::X", "No module named 'no_such_module_anywhere'", id="what it imports"),
        pytest.param("some_exit::X", "cannot import module some_exit: SystemExit: not today", id="it exits"),
        pytest.param("some_failover::Nobody", "has no class Nobody", id="class"),
        pytest.param("some_failover::number", "number in module some_failover is not a class", id="no class"),
        pytest.param("some_failover::Lacking", r"cannot create an object of class Lacking without arguments", id="abstract"),
        pytest.param("some_failover::Needy", r"cannot create an object of class Needy without arguments", id="arguments"),
        pytest.param(
            "some_failover::Methodless", "has none of the methods decide, get_user_failover_strategy; define one", id="method"
        ),
    ],
)
def test_a_wrong_one_is_refused_by_name(module: str, name: str, why: str) -> None:
    """The error says the field, the value, and what is wrong with it."""
    with pytest.raises(ConfigError, match=rf"^fault_tolerance.dynamic_failover_extension: {name}: .*{why}"):
        load(name)


class Strategy(enum.Enum):
    GLOBAL_FAILOVER = 17
    NO_IDEA = 18


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param(Failover.GLOBAL, Failover.GLOBAL, id="ours"),
        pytest.param("node", Failover.NODE, id="a word"),
        pytest.param("NORMAL_FAILOVER", Failover.NORMAL, id="DLRover's word"),
        pytest.param(Strategy.GLOBAL_FAILOVER, Failover.GLOBAL, id="an enum of its own"),
    ],
)
def test_each_answer_is_one_of_four(said: object, answer: Failover) -> None:
    """Whether it is said with our enum, a word, or the names that DLRover has."""
    assert read_answer(said) is answer


@pytest.mark.parametrize("said", [None, 5, "maybe", Strategy.NO_IDEA], ids=str)
def test_anything_else_is_normal_with_a_note(said: object) -> None:
    """The note says what was answered, and what is allowed."""
    told = say(lambda _: said, FAILURE, "m::C")
    assert told["failover"] == "normal"
    assert (
        told["note"]
        == f"extension m::C: failover decision {said!r} is not allowed; expected one of NORMAL, NODE, GLOBAL, ABORT; "
        "using NORMAL"
    )


def test_one_that_raises_is_normal_with_a_note() -> None:
    """Whatever it raises."""

    def decide(failure: Failure) -> Failover:
        raise SystemExit(f"round {failure.round}\nand more")

    assert say(decide, FAILURE, "m::C") == {
        "failover": "normal",
        "note": "extension m::C raised SystemExit: round 3; using NORMAL",
    }


def test_a_failure_survives_the_line() -> None:
    """It is the same on the other side."""
    assert codec.loads(Failure, codec.dumps(FAILURE)) == FAILURE


def test_the_base_class_asks_for_the_method() -> None:
    """A class that forgot it is noticed when it is loaded, not at the first failure."""
    assert FailoverExtension.__abstractmethods__ == {"decide"}


def test_it_is_started_as_a_worker_is() -> None:
    """In the same folder, with the same environment, without the job's secret; modules beside the script are found."""
    plan = build(
        Plan,
        name="j",
        role="r",
        min_nodes=1,
        max_nodes=1,
        entry=Entry.SCRIPT,
        entrypoint="src/train.py",
        workdir="/w",
        env={"A": "plan"},
        failover_extension="m::C",
    )
    command = extension_command(plan, {"A": "base", "B": "base", env.SECRET: "s"})
    assert command.argv == run_module("rallypoint.agent.node.extension", "--beside", "src/train.py", "m::C")
    assert (command.cwd, command.env["A"], command.env["B"], env.SECRET in command.env) == ("/w", "plan", "base", False)


# --- The one SIGKILL whose sender can be known -----------------------------------------------------------------------------


def test_the_kernels_count_of_kills_is_evidence(tmp_path: Path) -> None:
    """A kill that is counted since the last look is the kernel's; what was counted before is not."""
    events = tmp_path / "memory.events"
    events.write_text("oom 3\noom_kill 2\n")
    watch = OomWatch(events)
    assert not watch.killed()
    events.write_text("oom 4\noom_kill 3\n")
    assert watch.killed()
    assert not watch.killed()


def test_without_a_count_nothing_is_known(tmp_path: Path) -> None:
    """Another system, an old kernel: SIGKILL stays SIGKILL."""
    assert not OomWatch(tmp_path / "nothing").killed()
