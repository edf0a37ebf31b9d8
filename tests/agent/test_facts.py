"""What is found out about a worker that ended badly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rallypoint.agent.workers.facts import TAIL_BYTES, end_of, first_error, recorded_error, tail_lines
from rallypoint.agent.workers.group import Worker
from rallypoint.agent.workers.logs import RankLogs
from rallypoint.wire.env import MASKED
from rallypoint.wire.masked import mask_of
from tests.agent.test_worker_env import PLACE

TRACEBACK = [
    "starting",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    step()",
    "ValueError: loss is nan",
]
CHAINED = [
    *TRACEBACK,
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    *TRACEBACK[1:4],
    "OSError: b",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            '{"message": {"message": "ValueError: x\\nmore", "extraInfo": {}}}', "ValueError: x", id="torch's @record"
        ),
        pytest.param('{"message": "SignalException: y"}', "SignalException: y", id="a plain message"),
        pytest.param('{"message": "ValueError: img_\\udcff.jpg"}', "ValueError: img_\\udcff.jpg", id="half a surrogate pair"),
        pytest.param("", "", id="no file"),
        pytest.param("{torn", "", id="torn"),
        pytest.param("[1]", "", id="not an object"),
        pytest.param('{"message": 5}', "", id="not a text"),
    ],
)
def test_the_recorded_error_is_one_line(text: str, expected: str) -> None:
    """A file that is not understood counts as none."""
    assert recorded_error(text) == expected


@pytest.mark.parametrize(
    ("recorded", "lines", "expected"),
    [
        pytest.param("KeyError: a", TRACEBACK, "KeyError: a", id="what was recorded comes first"),
        pytest.param("", TRACEBACK, "ValueError: loss is nan", id="the traceback's conclusion"),
        pytest.param("", CHAINED, "OSError: b", id="the last of several tracebacks"),
        pytest.param("", [*TRACEBACK, "cleaning up"], "ValueError: loss is nan", id="lines after the traceback"),
        pytest.param(
            "", [f"[rank1]: {line}" for line in TRACEBACK], "ValueError: loss is nan", id="torch's prefix is taken off"
        ),
        pytest.param("", ["one", "two", " "], "two", id="no traceback: the last line that says something"),
        pytest.param("", TRACEBACK[:3], '  File "train.py", line 3, in <module>'.strip(), id="a traceback that was cut off"),
        pytest.param("", [], "", id="nothing is known"),
        pytest.param("", ["x" * 900], "x" * 499 + "…", id="a long line is cut"),
    ],
)
def test_the_first_error(recorded: str, lines: list[str], expected: str) -> None:
    """One line that a person can act on."""
    assert first_error(recorded, lines) == expected


@pytest.mark.parametrize(
    ("lines", "count", "limit", "expected"),
    [
        pytest.param(["a", "b", "c"], 2, 100, ("b", "c"), id="the last lines"),
        pytest.param(["a", "b"], 0, 100, (), id="none wanted"),
        pytest.param(["aaaa", "bbbb"], 2, 6, ("bbbb",), id="no room for the first"),
        pytest.param(["aaaa", "bbbb"], 2, 8, ("aa", "bbbb"), id="a little room for the first"),
        pytest.param(["abcdefgh"], 1, 4, ("fgh",), id="a line too long is cut at its front"),
    ],
)
def test_the_log_tail_is_bounded(lines: list[str], count: int, limit: int, expected: tuple[str, ...]) -> None:
    """By lines and by bytes."""
    assert tail_lines(lines, count, limit) == expected


def test_the_default_bound_holds_for_many_long_lines() -> None:
    """An incident travels in messages and records: its log must not grow them."""
    kept = tail_lines(["é" * 3000] * 20, 20)

    assert sum(len(line.encode()) for line in kept) <= TAIL_BYTES


def test_the_end_of_a_worker_is_read_from_its_files(tmp_path: Path) -> None:
    """What stderr says comes first, the error file decides the error, and the exit code is what the kernel said."""
    (tmp_path / "o").write_text("out\n")
    (tmp_path / "e").write_text("\n".join(TRACEBACK))
    (tmp_path / "x").write_text(json.dumps({"message": {"message": "ValueError: recorded"}}))
    logs = RankLogs(out=tmp_path / "o", err=tmp_path / "e", error_file=tmp_path / "x")
    worker = Worker(place=PLACE, logs=logs, pid=7, code=3, ended_at=1.5)

    culprit = end_of(worker, host="h", incarnation=2, log_tail=2)

    assert (culprit.rank, culprit.local_rank, culprit.node, culprit.incarnation, culprit.pid) == (3, 1, 1, 2, 7)
    assert (culprit.exit_code, culprit.signal, culprit.error, culprit.at) == (3, None, "ValueError: recorded", 1.5)
    assert (culprit.log_tail, culprit.log_path) == (("    step()", "ValueError: loss is nan"), str(tmp_path / "e"))


def test_the_end_of_a_worker_without_files(tmp_path: Path) -> None:
    """A worker that writes to the console and was killed leaves its signal, and nothing else is made up."""
    logs = RankLogs(out=None, err=None, error_file=tmp_path / "x")

    culprit = end_of(Worker(place=PLACE, logs=logs, code=-9), host="h", incarnation=0, log_tail=20)

    assert (culprit.exit_code, culprit.signal, culprit.error, culprit.log_tail, culprit.log_path) == (None, 9, "", (), "")


def test_stdout_speaks_where_stderr_is_empty(tmp_path: Path) -> None:
    """Some programs complain on stdout."""
    (tmp_path / "o").write_text("no such dataset\n")
    (tmp_path / "e").write_text("")
    logs = RankLogs(out=tmp_path / "o", err=tmp_path / "e", error_file=tmp_path / "x")

    assert end_of(Worker(place=PLACE, logs=logs, code=1), host="h", incarnation=0, log_tail=5).error == "no such dataset"


@pytest.mark.parametrize("secret", ['Zx9-"Geheim"-77', "Zx9-Gehäim-77", "back\\slash-77"])
def test_a_secret_is_masked_that_json_text_has_otherwise(secret: str, tmp_path: Path) -> None:
    """In the recorded error and in the recorded traceback: both are read from JSON text."""
    recorded = {"message": f"cannot log in with {secret}", "extraInfo": {"py_callstack": f"Traceback\n  with {secret}"}}
    (tmp_path / "e").write_text("rallypoint: the same error as on rank 0\n")
    (tmp_path / "x").write_text(json.dumps({"message": recorded}))
    worker = Worker(place=PLACE, logs=RankLogs(out=None, err=tmp_path / "e", error_file=tmp_path / "x"), code=1)

    mask = mask_of({"A": secret, MASKED: json.dumps([["A", 0, len(secret)]])}, ())
    culprit = end_of(worker, host="h", incarnation=0, log_tail=5, mask=mask)

    assert (culprit.error, culprit.log_tail) == ("cannot log in with ***", ("Traceback", "  with ***"))
