"""What is printed of an exception that ends a script: without our frames, and once."""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

from rallypoint.agent.workers import facts
from rallypoint.training.startup import tracebacks
from rallypoint.wire import env

WHOLE = "Traceback (most recent call last):\n"
OURS = str(Path(tracebacks.__file__).with_name("watching.py"))
#: A wrapper of ours as Python 3.10 leaves it: with its own frame in the traceback.
WRAPPER = "def ours(run):\n    return run()\n"


def wrapped(run: Callable[[], object]) -> object:
    """Call `run` in a frame of ours."""
    names: dict[str, Callable[[object], object]] = {}
    exec(compile(WRAPPER, OURS, "exec"), names)
    return names["ours"](run)


def fail(text: str = "no") -> None:
    raise ValueError(text)


def caught(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it does not fail")


def frames(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def chain() -> None:
    try:
        wrapped(fail)
    except ValueError as error:
        cause = error
        wrapped(lambda: fail_from(cause))


def fail_from(error: ValueError) -> None:
    raise KeyError("later") from error


def test_our_frames_are_dropped_wherever_they_are() -> None:
    """At the front, in the middle, two in a row, of a cause and of a context."""
    error = caught(lambda: wrapped(lambda: wrapped(chain)))

    tracebacks.strip(error)

    assert frames(error) == [
        "caught",
        "<lambda>",
        "wrapped",
        "<lambda>",
        "wrapped",
        "chain",
        "wrapped",
        "<lambda>",
        "fail_from",
    ]
    assert frames(error.__cause__) == ["chain", "wrapped", "fail"]
    assert OURS not in "".join(traceback.format_exception(error))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
def test_our_frames_are_dropped_from_the_members_of_a_group() -> None:
    """Also of a group in a group."""
    group = ExceptionGroup("two", [caught(lambda: wrapped(fail)), ExceptionGroup("inner", [caught(lambda: wrapped(fail))])])  # type: ignore[name-defined]  # noqa: F821

    tracebacks.strip(group)

    assert OURS not in "".join(traceback.format_exception(group))


def test_an_exception_that_is_its_own_context_ends_nothing() -> None:
    """A circle of contexts is walked once."""
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first

    tracebacks.strip(first)

    assert (first.__context__, second.__context__) == (second, first)


class Round:
    """One round of a worker whose errors are printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch, self.folder = monkeypatch, folder
        self.recorded = folder / "error.json"
        monkeypatch.setenv(env.SHOWN_ERRORS, str(folder / "shown"))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(self.recorded))

    def prints(self, round_: int, error: Exception, rank: int = 0) -> str:
        """Return what this round prints of an error."""
        self.monkeypatch.setenv(env.ROUND, str(round_))
        self.monkeypatch.setenv("RANK", str(rank))
        output = io.StringIO()
        self.monkeypatch.setattr(sys, "stderr", output)

        def display(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            traceback.print_exception(kind, error, trace, file=sys.stderr)

        tracebacks.show(display, type(error), error, error.__traceback__)
        return output.getvalue()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Round:
    return Round(monkeypatch, tmp_path)


def test_an_error_is_printed_whole_once_and_then_in_one_line(worker: Round) -> None:
    """Ranks of one round print it each, and the error file has it where the line stands for it."""
    error = caught(chain)
    first, same_round = worker.prints(1, error, rank=3), worker.prints(1, error, rank=4)
    assert not worker.recorded.exists()
    later = worker.prints(2, error)

    assert first == same_round
    assert first.count(WHOLE) == 2
    assert later == "rallypoint: the same error as on rank 3 in round 1: KeyError: 'later'\n"
    recorded = worker.recorded.read_text()
    assert json.loads(recorded)["message"]["extraInfo"]["py_callstack"] == first
    assert facts.recorded_error(recorded) == "KeyError: 'later'"


def test_another_text_or_another_line_is_another_error(worker: Round) -> None:
    """The whole text with its frames is compared."""
    worker.prints(1, caught(fail))

    assert worker.prints(2, caught(lambda: fail("yes"))).startswith(WHOLE)
    assert worker.prints(2, caught(lambda: wrapped(fail))).startswith(WHOLE)


def test_addresses_make_no_other_error(worker: Round) -> None:
    """They differ in each process."""
    worker.prints(1, ValueError(f"no batch in {object()!r}"))

    assert worker.prints(2, ValueError("no batch in <object object at 0x7fffdeadbeef>")).startswith(tracebacks.AGAIN)


class HostileError(Exception):
    """Has no text, or a huge one with control characters."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __str__(self) -> str:
        if self.text is None:
            raise RuntimeError("no text")
        return self.text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no text"),
        pytest.param("", id="empty"),
        pytest.param("x" * 1_000_000, id="huge"),
        pytest.param("a\nb\ud800", id="lines and a lone surrogate"),
    ],
)
def test_hostile_errors(worker: Round, text: str | None) -> None:
    """Each is one line of bounded length the second time."""
    error = HostileError(text)
    assert "Hostile" in worker.prints(1, error)

    later = worker.prints(2, error)

    assert (later.startswith(tracebacks.AGAIN), later.count("\n"), len(later) < 500) == (True, 1, True)


@pytest.mark.parametrize("broken", ["no folder", "empty", "folder"])
def test_an_error_is_printed_whole_where_the_notes_cannot_be_read(worker: Round, broken: str) -> None:
    """No error of ours may hide one of the script."""
    shown = worker.folder / "shown"
    worker.prints(1, caught(fail))
    [note] = shown.iterdir()
    note.unlink()
    if broken == "no folder":
        shown.rmdir()
        shown.touch()
    elif broken == "empty":
        note.touch()
    else:
        note.mkdir()

    printed = worker.prints(2, caught(fail))
    # A file without contents says that no round has printed the error.
    warning, traceback_, _ = printed.partition(WHOLE)
    assert traceback_
    assert ("cannot compare this error" in warning) == (broken != "empty")


def test_nothing_is_noted_where_each_round_has_files_of_its_own(worker: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent names no folder there."""
    monkeypatch.delenv(env.SHOWN_ERRORS)

    assert worker.prints(1, caught(fail)) == worker.prints(2, caught(fail))
    assert list(worker.folder.iterdir()) == []


def test_the_record_has_the_traceback_in_the_place_of_the_line(worker: Round) -> None:
    """Also behind the prefix that torch puts before each line."""
    error = caught(chain)
    whole = worker.prints(1, error).splitlines()
    line = worker.prints(2, error).rstrip()
    recorded = facts.recorded_traceback(worker.recorded.read_text())

    assert facts.with_traceback(["before", line, "behind"], recorded) == ("before", *whole, "behind")
    assert facts.with_traceback(["before", f"[rank2]: {line}"], recorded) == ("before", *whole)
    assert facts.with_traceback(["before"], recorded) == ("before",)
    assert facts.with_traceback([line], ()) == (line,)


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", '{"message": "text"}', '{"message": {"extraInfo": {"py_callstack": 7}}}']
)
def test_a_file_without_a_traceback_has_none(text: str) -> None:
    """Whatever else is in it."""
    assert facts.recorded_traceback(text) == ()


def test_the_agent_knows_the_line() -> None:
    """The start-up module imports nothing of the agent, so both have the names."""
    assert (facts._AGAIN, env.SHOWN_ERRORS) == (tracebacks.AGAIN, tracebacks.FOLDER)
